from __future__ import annotations

import pytest
import torch
from tests.audits.utility.setting import digits, perceptron, release, task
from torch import nn

import gradleak as gl
from gradleak.core import derive_generator
from gradleak.data import poisson_release
from gradleak.models import mlp
from gradleak.results import InputError, Outcome, UnsupportedError
from gradleak.training import PerturbedRounds, Training, train


def _by_torch(rounds: int, learning_rate: float, momentum: float) -> nn.Module:
    model = perceptron(derive_generator(0, "weights"))
    rows = digits()[0]
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=momentum)
    for _ in range(rounds):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(rows.inputs), rows.targets).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("clients", [1, 4])
def test_whole_batches_without_defense_are_what_torch_trains(clients: int) -> None:
    training = Training(rounds=8, learning_rate=0.5, batch_size=400 // clients, clients=clients, momentum=0.5, probes=0)
    run = train(task(), release(), training, seed=0)
    expected = _by_torch(8, 0.5, 0.5)
    for name, parameter in expected.named_parameters():
        assert torch.allclose(run.objective.params[name], parameter, atol=1e-5)
    assert (run.outcome, run.rounds) == (Outcome.CONVERGED, 8)


def test_a_delta_moves_the_model_as_the_client_went() -> None:
    training = Training(rounds=1, learning_rate=1.0, batch_size=400)
    run = train(task(), gl.Release(gl.FedAvg(learning_rate=0.5, epochs=4)), training, seed=0)
    expected = _by_torch(4, 0.5, 0.0)
    for name, parameter in expected.named_parameters():
        assert torch.allclose(run.objective.params[name], parameter, atol=1e-5)


def test_an_epoch_uses_every_row_once() -> None:
    train_rows, _ = digits()
    counted = Training(rounds=9, learning_rate=0.1, batch_size=100)
    assert counted.takes_part(train_rows.size) == 3
    assert Training(rounds=9, learning_rate=0.1, batch_size=100, clients=2).takes_part(train_rows.size) == 5
    assert Training(rounds=9, learning_rate=0.1, sampling_rate=0.1).takes_part(train_rows.size) == 9
    # 400 rows in batches of 130: three an epoch, ten rows wait.
    assert Training(rounds=4, learning_rate=0.1, batch_size=130).takes_part(train_rows.size) == 2


def test_same_seed_same_bits_and_equal_rows_under_every_release() -> None:
    training = Training(rounds=4, learning_rate=0.5, batch_size=50)
    noisy = release(gl.GaussianNoise(std=0.01))
    first, again, other = (train(task(), noisy, training, seed=seed) for seed in (3, 3, 4))
    for name, tensor in first.objective.params.items():
        assert torch.equal(tensor, again.objective.params[name])
    assert any(not torch.equal(t, other.objective.params[n]) for n, t in first.objective.params.items())
    # So little noise that weights and rows alone decide.
    plain, quiet = (train(task(), r, training, seed=3) for r in (release(), release(gl.GaussianNoise(std=1e-9))))
    for name, tensor in plain.objective.params.items():
        assert torch.allclose(tensor, quiet.objective.params[name], atol=1e-6)


def test_a_round_of_poisson_sampling_is_the_release_of_gradleak_dp() -> None:
    defense = gl.DPSGD(clip_norm=1.0, noise_std=0.5, noise="sum", expected_batch_size=40)
    run = train(task(), release(defense), Training(rounds=1, learning_rate=0.3, sampling_rate=0.1), seed=5)
    rows = digits()[0]
    order = torch.randperm(rows.size, generator=derive_generator(5, "clients"))
    start = gl.Objective.from_module(perceptron(derive_generator(5, "weights")))
    coins = derive_generator(5, "rows", "0")
    dealt = gl.Batch(rows.inputs[order], rows.targets[order], rows.domain)
    silent = release(gl.ClipPerExample(1.0))
    drawn = poisson_release(silent, start, dealt, rate=0.1, generator=coins)
    noise = derive_generator(5, "release")
    for name, tensor in start.params.items():
        clipped = drawn.update.tensors[name] * drawn.examples / 40
        z = torch.randn(tensor.shape, generator=noise)
        assert torch.allclose(run.objective.params[name], tensor - 0.3 * (clipped + 0.5 / 40 * z), atol=1e-6)


def test_empty_poisson_batches_count_and_carry_noise() -> None:
    """U58: sampling rate 0.01 on 50 rows."""
    rows = digits()[0]
    few = task(train=gl.Batch(rows.inputs[:50], rows.targets[:50], rows.domain))
    training = Training(rounds=30, learning_rate=0.1, sampling_rate=0.01)
    defense = gl.DPSGD(clip_norm=1.0, noise_std=1.0, noise="sum", expected_batch_size=1)
    run = train(few, release(defense), training, seed=0)
    assert 10 < run.empty_rounds < 30
    assert (run.silent_rounds, run.rounds) == (0, 30)
    start = perceptron(derive_generator(0, "weights"))
    moved = sum(float((run.objective.params[n] - p.detach()).square().sum()) for n, p in start.named_parameters())
    entries = sum(p.numel() for p in start.parameters())
    # All thirty rounds bring noise of variance 0.1², the empty ones too; gradients of norm 1 add little to that.
    assert moved / entries == pytest.approx(30 * 0.01, rel=0.15)

    # A mean over the rows that were drawn cannot be made of none: nothing is sent, and that is counted.
    run = train(few, release(), training, seed=0)
    assert run.silent_rounds == run.empty_rounds > 10


def test_a_training_that_diverges_says_when() -> None:
    def unbounded(generator: torch.Generator) -> nn.Module:
        return nn.Sequential(nn.Flatten(), mlp(features=64, hidden=(16,), classes=10, generator=generator))

    run = train(task(make_model=unbounded), release(), Training(rounds=20, learning_rate=1e30, batch_size=100), seed=0)
    assert run.outcome is Outcome.NOT_FINITE
    assert run.outputs is None
    assert run.rounds < 20
    assert "diverged in round" in run.note


def test_closeness_is_to_the_undefended_update_of_the_same_rows() -> None:
    training = Training(rounds=5, learning_rate=0.1, batch_size=50)
    plain, pruned, signed = (
        train(task(), release(*d), training, seed=0).closeness for d in ([], [gl.Prune(0.9)], [gl.Sign()])
    )
    assert plain is not None
    assert pruned is not None
    assert signed is not None
    assert (plain.cosine, plain.relative_norm, plain.probes) == (pytest.approx(1.0), pytest.approx(1.0), 5)
    assert pruned.kept_share == pytest.approx(0.1, abs=0.002)
    assert pruned.cosine == pytest.approx(pruned.relative_norm)
    assert 0.3 < signed.cosine < 1
    assert signed.relative_norm > 10
    assert (
        train(task(), release(), Training(rounds=2, learning_rate=0.1, batch_size=50, probes=0), seed=0).closeness
        is None
    )


def test_a_bottleneck_is_drawn_anew_in_every_round_and_judged_by_its_mean() -> None:
    defense = gl.defenses.VariationalBottleneck(beta=0.001, width=16)

    def model(generator: torch.Generator) -> nn.Module:
        encoder = nn.Sequential(nn.Flatten(), perceptron(generator)[1][:2])
        return defense.insert(encoder, nn.Linear(16, 10), features=16, generator=generator)

    random = task(make_model=model, loss=defense.loss(), mode="train")
    training = Training(rounds=40, learning_rate=0.5, batch_size=100)
    run = train(random, release(defense), training, seed=0)
    again = train(random, release(defense), training, seed=0)
    assert run.outcome is Outcome.CONVERGED
    assert torch.equal(torch.from_numpy(run.outputs), torch.from_numpy(again.outputs))
    assert run.outputs.shape == (200, 10)
    still = train(random, release(defense), Training(rounds=1, learning_rate=1e-30, batch_size=400), seed=0)
    later = train(random, release(defense), Training(rounds=2, learning_rate=1e-30, batch_size=400), seed=0)
    assert still.objective.mask_seed != later.objective.mask_seed
    with pytest.raises(InputError, match="BottleneckLayer"):
        train(task(), release(defense), training, seed=0)


def test_an_adversarial_perturbation_is_trained_at_every_round() -> None:
    train_rows, test_rows = digits()
    parity = gl.Batch(train_rows.inputs, train_rows.targets, train_rows.domain, train_rows.targets % 2)
    made = []

    class Watched(PerturbedRounds):
        def at(self, objective: gl.Objective, generator: torch.Generator) -> gl.Release:
            found = super().at(objective, generator)
            made.append((objective, found))
            return found

    public = gl.Batch(test_rows.inputs, test_rows.targets, test_rows.domain, test_rows.targets % 2)
    rounds = Watched(public=public, batch_size=20, updates=8, epochs=2, hidden=4, gamma=0.005)
    run = train(task(train=parity), rounds, Training(rounds=3, learning_rate=0.5, batch_size=20), seed=0)
    assert len({id(objective) for objective, _ in made}) == 3
    classifiers = [found.defenses[0].classifier.first.weight for _, found in made]
    assert not torch.equal(classifiers[0], classifiers[1])
    assert run.closeness.cosine < 1
    assert "300 rows" not in str(rounds.describe())
    assert rounds.describe()["public"] == "200 rows"


def test_what_cannot_be_trained_is_refused() -> None:
    with pytest.raises(InputError, match="one of batch_size and sampling_rate"):
        Training(rounds=1, learning_rate=0.1)
    with pytest.raises(InputError, match="one of batch_size and sampling_rate"):
        Training(rounds=1, learning_rate=0.1, batch_size=2, sampling_rate=0.1)
    with pytest.raises(InputError, match="sampling_rate"):
        Training(rounds=1, learning_rate=0.1, sampling_rate=1.5)
    with pytest.raises(InputError, match="momentum: expected a number from 0 to below 1"):
        Training(rounds=1, learning_rate=0.1, batch_size=2, momentum=1.0)
    with pytest.raises(InputError, match="at least 300 rows for each of 2 clients, got 400"):
        train(task(), release(), Training(rounds=1, learning_rate=0.1, batch_size=300, clients=2), seed=0)

    def mixing(generator: torch.Generator) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 10))

    with pytest.raises(UnsupportedError, match="GroupNorm"):
        train(
            task(make_model=mixing, mode="train"),
            release(gl.ClipPerExample(1.0)),
            Training(rounds=1, learning_rate=0.1, batch_size=50),
            seed=0,
        )

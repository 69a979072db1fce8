"""The picture of a privacy-utility curve."""

from __future__ import annotations

from tests.reporting.parsed import Page

from gradleak.reporting.pages.utility.curve import TradeOff, standalone, trade_off_plot


def test_a_trade_off_has_a_panel_an_attacker_and_marks_what_earns_no_credit() -> None:
    points = [
        TradeOff(family="pruning", label="0.9", utility=0.9, interval=(0.8, 0.95), error=0.2, credit=True),
        TradeOff(family="pruning", label="0.99", utility=0.1, interval=None, error=0.0, credit=False),
        TradeOff(family="sign $x", label="sign", utility=0.8, interval=(0.7, 0.9), error=None, credit=True),
    ]
    text = trade_off_plot({"static attacker": points, "adaptive attacker": points[:1]}, utility="test AUROC", blind=0.3)
    Page(text)
    for name in ("static attacker", "adaptive attacker", "pruning", "test AUROC"):
        assert name in text
    assert "sign $x" not in text
    assert trade_off_plot({"static": points[2:]}) == ""
    alone = standalone(text)
    assert "var(" not in alone
    assert "currentColor" not in alone
    assert alone.startswith('<svg xmlns="http://www.w3.org/2000/svg"')

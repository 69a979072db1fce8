"""The names of the package: these and its namespaces. Each is written here alone; `__init__.py` loads it when it is asked for."""

from . import (
    accounting as accounting,
)
from . import (
    attacks as attacks,
)
from . import (
    auditing as auditing,
)
from . import (
    audits as audits,
)
from . import (
    core as core,
)
from . import (
    data as data,
)
from . import (
    datasets as datasets,
)
from . import (
    defenses as defenses,
)
from . import (
    games as games,
)
from . import (
    linalg as linalg,
)
from . import (
    models as models,
)
from . import (
    operators as operators,
)
from . import (
    privacy as privacy,
)
from . import (
    protocols as protocols,
)
from . import (
    reporting as reporting,
)
from . import (
    results as results,
)
from . import (
    risk as risk,
)
from . import (
    scoring as scoring,
)
from . import (
    testing as testing,
)
from . import (
    training as training,
)
from .attacks import (
    GaussNewton as GaussNewton,
)
from .attacks import (
    InvertingGradients as InvertingGradients,
)
from .attacks.inference import RandomForest as RandomForest
from .auditing import (
    AuditOptions as AuditOptions,
)
from .auditing import (
    Plan as Plan,
)
from .auditing import (
    audit as audit,
)
from .auditing import (
    load_plan as load_plan,
)
from .auditing import (
    run_plan as run_plan,
)
from .core import (
    Batch as Batch,
)
from .core import (
    Domain as Domain,
)
from .core import (
    Exposure as Exposure,
)
from .core import (
    HonestButCurious as HonestButCurious,
)
from .core import (
    Objective as Objective,
)
from .core import (
    Release as Release,
)
from .core import (
    Update as Update,
)
from .core import (
    Vocabulary as Vocabulary,
)
from .data import (
    Column as Column,
)
from .data import (
    Table as Table,
)
from .defenses import (
    DPSGD as DPSGD,
)
from .defenses import (
    Clip as Clip,
)
from .defenses import (
    ClipPerExample as ClipPerExample,
)
from .defenses import (
    GaussianNoise as GaussianNoise,
)
from .defenses import (
    Prune as Prune,
)
from .defenses import (
    Sign as Sign,
)
from .games import PropertyGame as PropertyGame
from .operators import GradientJacobian as GradientJacobian
from .protocols import (
    FedAvg as FedAvg,
)
from .protocols import (
    FedSGD as FedSGD,
)
from .reporting import (
    write_html as write_html,
)
from .reporting import (
    write_json as write_json,
)
from .reporting import (
    write_markdown as write_markdown,
)
from .results import (
    Evidence as Evidence,
)
from .results import (
    Finding as Finding,
)
from .results import (
    GradleakError as GradleakError,
)
from .results import (
    Outcome as Outcome,
)
from .results import (
    Record as Record,
)
from .results import (
    Score as Score,
)
from .results import (
    Thresholds as Thresholds,
)
from .results import (
    Verdict as Verdict,
)
from .results import (
    VerdictKind as VerdictKind,
)
from .risk import (
    BayesianCramerRao as BayesianCramerRao,
)
from .risk import (
    GaussianReconstructionError as GaussianReconstructionError,
)
from .risk import (
    GradientNorm as GradientNorm,
)
from .risk import (
    InversionInfluence as InversionInfluence,
)
from .risk import (
    InversionInfluenceLowerBound as InversionInfluenceLowerBound,
)
from .risk import (
    LinearizedPosteriorError as LinearizedPosteriorError,
)
from .risk import (
    Sensitivity as Sensitivity,
)
from .risk import (
    Vulnerability as Vulnerability,
)
from .scoring import score_images as score_images

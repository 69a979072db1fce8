"""References to the literature behind a measure, an attack or a defense."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Citation:
    """One publication.

    Attributes:
        key: BibTeX key, for instance "zhang2023i2f".
        authors: as they are to be printed.
        title: the title.
        venue: journal or conference.
        year: year of publication.
        identifier: arXiv number or DOI, or "".
    """

    key: str
    authors: str
    title: str
    venue: str
    year: int
    identifier: str = ""

    def text(self) -> str:
        """One line for a bibliography."""
        tail = f" {self.identifier}." if self.identifier else ""
        return f"{self.authors} ({self.year}). {self.title}. {self.venue}.{tail}"

    def bibtex(self) -> str:
        """A BibTeX entry."""
        fields = [
            f"  author = {{{self.authors}}}",
            f"  title = {{{self.title}}}",
            f"  booktitle = {{{self.venue}}}",
            f"  year = {{{self.year}}}",
        ]
        if self.identifier:
            fields.append(f"  note = {{{self.identifier}}}")
        return f"@inproceedings{{{self.key},\n" + ",\n".join(fields) + "\n}"


ZHANG_2023 = Citation(
    key="zhang2023i2f",
    authors="Zhang, Hong, Deng, Mahdavi and Zhou",
    title="Understanding Deep Gradient Leakage via Inversion Influence Functions",
    venue="NeurIPS",
    year=2023,
    identifier="arXiv:2309.13016",
)
ZHU_2019 = Citation(
    key="zhu2019dlg",
    authors="Zhu, Liu and Han",
    title="Deep Leakage from Gradients",
    venue="NeurIPS",
    year=2019,
    identifier="arXiv:1906.08935",
)
ZHAO_2020 = Citation(
    key="zhao2020idlg",
    authors="Zhao, Mopuri and Bilen",
    title="iDLG: Improved Deep Leakage from Gradients",
    venue="arXiv",
    year=2020,
    identifier="arXiv:2001.02610",
)
GEIPING_2020 = Citation(
    key="geiping2020ig",
    authors="Geiping, Bauermeister, Dröge and Moeller",
    title="Inverting Gradients: How easy is it to break privacy in federated learning?",
    venue="NeurIPS",
    year=2020,
    identifier="arXiv:2003.14053",
)
FANG_2024 = Citation(
    key="fang2024igims",
    authors="Fang et al.",
    title="Iterative and mixed-spaces image gradient inversion attack in federated learning",
    venue="Cybersecurity",
    year=2024,
)
HONG_2024 = Citation(
    key="hong2024lavp",
    authors="Hong et al.",
    title="Foreseeing Reconstruction Quality of Gradient Inversion: An Optimization Perspective",
    venue="AAAI",
    year=2024,
)
HANNUN_2021 = Citation(
    key="hannun2021fil",
    authors="Hannun, Guo and van der Maaten",
    title="Measuring Data Leakage in Machine-Learning Models with Fisher Information",
    venue="UAI",
    year=2021,
)
LEVENBERG_MARQUARDT = Citation(
    key="more1978lm",
    authors="Moré",
    title="The Levenberg-Marquardt algorithm: implementation and theory",
    venue="Numerical Analysis, Lecture Notes in Mathematics 630",
    year=1978,
)
ABADI_2016 = Citation(
    key="abadi2016dpsgd",
    authors="Abadi et al.",
    title="Deep Learning with Differential Privacy",
    venue="CCS",
    year=2016,
    identifier="arXiv:1607.00133",
)
MCMAHAN_2017 = Citation(
    key="mcmahan2017fedavg",
    authors="McMahan, Moore, Ramage, Hampson and Agüera y Arcas",
    title="Communication-Efficient Learning of Deep Networks from Decentralized Data",
    venue="AISTATS",
    year=2017,
    identifier="arXiv:1602.05629",
)
MCMAHAN_2018 = Citation(
    key="mcmahan2018language",
    authors="McMahan, Ramage, Talwar and Zhang",
    title="Learning Differentially Private Recurrent Language Models",
    venue="ICLR",
    year=2018,
    identifier="arXiv:1710.06963",
)
LIN_2018 = Citation(
    key="lin2018dgc",
    authors="Lin, Han, Mao, Wang and Dally",
    title="Deep Gradient Compression: Reducing the Communication Bandwidth for Distributed Training",
    venue="ICLR",
    year=2018,
    identifier="arXiv:1712.01887",
)
BERNSTEIN_2018 = Citation(
    key="bernstein2018signsgd",
    authors="Bernstein, Wang, Azizzadenesheli and Anandkumar",
    title="signSGD: Compressed Optimisation for Non-Convex Problems",  # codespell:ignore
    venue="ICML",
    year=2018,
    identifier="arXiv:1802.04434",
)
WANG_2004 = Citation(
    key="wang2004ssim",
    authors="Wang, Bovik, Sheikh and Simoncelli",
    title="Image quality assessment: from error visibility to structural similarity",
    venue="IEEE Transactions on Image Processing 13(4)",
    year=2004,
)
MO_2021 = Citation(
    key="mo2021leakage",
    authors="Mo, Borovykh, Malekzadeh, Haddadi and Demetriou",
    title="Quantifying and Localizing Private Information Leakage from Neural Network Gradients",
    venue="arXiv",
    year=2021,
    identifier="arXiv:2105.13929",
)
VAN_TREES_1968 = Citation(
    key="vantrees1968",
    authors="Van Trees",
    title="Detection, Estimation, and Modulation Theory, Part I",
    venue="Wiley",
    year=1968,
)
GILL_LEVIT_1995 = Citation(
    key="gill1995vantrees",
    authors="Gill and Levit",
    title="Applications of the van Trees inequality: a Bayesian Cramér-Rao bound",
    venue="Bernoulli 1(1-2)",
    year=1995,
)
LEDOIT_WOLF_2004 = Citation(
    key="ledoit2004",
    authors="Ledoit and Wolf",
    title="A well-conditioned estimator for large-dimensional covariance matrices",
    venue="Journal of Multivariate Analysis 88(2)",
    year=2004,
)

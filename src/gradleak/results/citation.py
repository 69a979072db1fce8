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
WANG_2004 = Citation(
    key="wang2004ssim",
    authors="Wang, Bovik, Sheikh and Simoncelli",
    title="Image quality assessment: from error visibility to structural similarity",
    venue="IEEE Transactions on Image Processing 13(4)",
    year=2004,
)

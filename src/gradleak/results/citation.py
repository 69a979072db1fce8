"""References to the literature behind a measure, an attack or a defense.

Longer than 500 lines since it is the one list of all of them.
"""

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
ZHU_2021 = Citation(
    key="zhu2021rgap",
    authors="Zhu and Blaschko",
    title="R-GAP: Recursive Gradient Attack on Privacy",
    venue="ICLR",
    year=2021,
)
LENSTRA_1982 = Citation(
    key="lenstra1982lll",
    authors="Lenstra, Lenstra and Lovász",
    title="Factoring Polynomials with Rational Coefficients",
    venue="Mathematische Annalen",
    year=1982,
    identifier="doi:10.1007/BF01457454",
)
BABAI_1986 = Citation(
    key="babai1986nearest",
    authors="Babai",
    title="On Lovász' Lattice Reduction and the Nearest Lattice Point Problem",
    venue="Combinatorica",
    year=1986,
    identifier="doi:10.1007/BF02579403",
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
LI_2022 = Citation(
    key="li2022ggl",
    authors="Li, Zhang, Liu and Liu",
    title="Auditing Privacy Defenses in Federated Learning via Generative Gradient Leakage",
    venue="CVPR",
    year=2022,
    identifier="arXiv:2203.15696",
)
HANSEN_2016 = Citation(
    key="hansen2016cma",
    authors="Hansen",
    title="The CMA Evolution Strategy: A Tutorial",
    venue="arXiv",
    year=2016,
    identifier="arXiv:1604.00772",
)
ULYANOV_2018 = Citation(
    key="ulyanov2018dip",
    authors="Ulyanov, Vedaldi and Lempitsky",
    title="Deep Image Prior",
    venue="CVPR",
    year=2018,
    identifier="arXiv:1711.10925",
)
FANG_2024 = Citation(
    key="fang2024igims",
    authors="Fang et al.",
    title="Iterative and mixed-spaces image gradient inversion attack in federated learning",
    venue="Cybersecurity",
    year=2024,
)
DENG_2021 = Citation(
    key="deng2021tag",
    authors="Deng, Wang, Li, Wang, Shang, Liu, Rajasekaran and Ding",
    title="TAG: Gradient Attack on Transformer-based Language Models",
    venue="Findings of EMNLP",
    year=2021,
    identifier="arXiv:2103.06819",
)
HUANG_2021 = Citation(
    key="huang2021evaluating",
    authors="Huang, Gupta, Song, Li and Arora",
    title="Evaluating Gradient Inversion Attacks and Defenses in Federated Learning",
    venue="NeurIPS",
    year=2021,
    identifier="arXiv:2112.00059",
)
YIN_2021 = Citation(
    key="yin2021gradinversion",
    authors="Yin, Mallya, Vahdat, Alvarez, Kautz and Molchanov",
    title="See through Gradients: Image Batch Recovery via GradInversion",
    venue="CVPR",
    year=2021,
    identifier="arXiv:2104.07586",
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
HOCHSTENBACH_2013 = Citation(
    key="hochstenbach2013norm",
    authors="Hochstenbach",
    title="Probabilistic Upper Bounds for the Matrix Two-Norm",
    venue="Journal of Scientific Computing",
    year=2013,
    identifier="doi:10.1007/s10915-013-9716-x",
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
KINGMA_2015 = Citation(
    key="kingma2015adam",
    authors="Kingma and Ba",
    title="Adam: A Method for Stochastic Optimization",
    venue="ICLR",
    year=2015,
    identifier="arXiv:1412.6980",
)
LI_2020 = Citation(
    key="li2020fedprox",
    authors="Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith",
    title="Federated Optimization in Heterogeneous Networks",
    venue="MLSys",
    year=2020,
    identifier="arXiv:1812.06127",
)
LOSHCHILOV_2019 = Citation(
    key="loshchilov2019adamw",
    authors="Loshchilov and Hutter",
    title="Decoupled Weight Decay Regularization",
    venue="ICLR",
    year=2019,
    identifier="arXiv:1711.05101",
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
MA_2023 = Citation(
    key="ma2023ilrg",
    authors="Ma, Sun, Cui, Li, Guan and Liu",
    title="Instance-wise Batch Label Restoration via Gradients in Federated Learning",
    venue="ICLR",
    year=2023,
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
LI_2024 = Citation(
    key="li2024inference",
    authors="Li et al.",
    title="Analyzing Inference Privacy Risks Through Gradients in Machine Learning",
    venue="CCS",
    year=2024,
)
DWORK_2006 = Citation(
    key="dwork2006laplace",
    authors="Dwork, McSherry, Nissim and Smith",
    title="Calibrating Noise to Sensitivity in Private Data Analysis",
    venue="TCC",
    year=2006,
)
DWORK_ROTH_2014 = Citation(
    key="dwork2014foundations",
    authors="Dwork and Roth",
    title="The Algorithmic Foundations of Differential Privacy",
    venue="Foundations and Trends in Theoretical Computer Science 9(3-4)",
    year=2014,
)
BALLE_WANG_2018 = Citation(
    key="balle2018gaussian",
    authors="Balle and Wang",
    title="Improving the Gaussian Mechanism for Differential Privacy: Analytical Calibration and Optimal Denoising",
    venue="ICML",
    year=2018,
    identifier="arXiv:1805.06530",
)
MIRONOV_2019 = Citation(
    key="mironov2019sampled",
    authors="Mironov, Talwar and Zhang",
    title="Rényi Differential Privacy of the Sampled Gaussian Mechanism",
    venue="arXiv",
    year=2019,
    identifier="arXiv:1908.10530",
)
KARIMIREDDY_2020 = Citation(
    key="karimireddy2020scaffold",
    authors="Karimireddy, Kale, Mohri, Reddi, Stich and Suresh",
    title="SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
    venue="ICML",
    year=2020,
    identifier="arXiv:1910.06378",
)
DIMITROV_2022 = Citation(
    key="dimitrov2022fedavg",
    authors="Dimitrov, Balunović, Konstantinov and Vechev",
    title="Data Leakage in Federated Averaging",
    venue="Transactions on Machine Learning Research",
    year=2022,
    identifier="arXiv:2206.12395",
)
DOROSHENKO_2022 = Citation(
    key="doroshenko2022dots",
    authors="Doroshenko, Ghazi, Kamath, Kumar and Manurangsi",
    title="Connect the Dots: Tighter Discrete Approximations of Privacy Loss Distributions",
    venue="PoPETs 2022(4)",
    year=2022,
    identifier="arXiv:2207.04380",
)
ALISTARH_2017 = Citation(
    key="alistarh2017qsgd",
    authors="Alistarh, Grubic, Li, Tomioka and Vojnovic",
    title="QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding",
    venue="NeurIPS",
    year=2017,
    identifier="arXiv:1610.02132",
)
KONECNY_2016 = Citation(
    key="konecny2016efficiency",
    authors="Konečný, McMahan, Yu, Richtárik, Suresh and Bacon",
    title="Federated Learning: Strategies for Improving Communication Efficiency",
    venue="arXiv",
    year=2016,
    identifier="arXiv:1610.05492",
)
STICH_2018 = Citation(
    key="stich2018sparsified",
    authors="Stich, Cordonnier and Jaggi",
    title="Sparsified SGD with Memory",
    venue="NeurIPS",
    year=2018,
    identifier="arXiv:1809.07599",
)
MADRY_2018 = Citation(
    key="madry2018pgd",
    authors="Madry, Makelov, Schmidt, Tsipras and Vladu",
    title="Towards Deep Learning Models Resistant to Adversarial Attacks",
    venue="ICLR",
    year=2018,
    identifier="arXiv:1706.06083",
)
ALEMI_2017 = Citation(
    key="alemi2017vib",
    authors="Alemi, Fischer, Dillon and Murphy",
    title="Deep Variational Information Bottleneck",
    venue="ICLR",
    year=2017,
    identifier="arXiv:1612.00410",
)
BONAWITZ_2017 = Citation(
    key="bonawitz2017aggregation",
    authors="Bonawitz et al.",
    title="Practical Secure Aggregation for Privacy-Preserving Machine Learning",
    venue="CCS",
    year=2017,
)
BREIMAN_2001 = Citation(
    key="breiman2001forests",
    authors="Breiman",
    title="Random Forests",
    venue="Machine Learning 45(1)",
    year=2001,
    identifier="10.1023/A:1010933404324",
)
SNELL_2017 = Citation(
    key="snell2017prototypical",
    authors="Snell, Swersky and Zemel",
    title="Prototypical Networks for Few-shot Learning",
    venue="NeurIPS",
    year=2017,
    identifier="arXiv:1703.05175",
)
FRANK_HALL_2001 = Citation(
    key="frank2001ordinal",
    authors="Frank and Hall",
    title="A Simple Approach to Ordinal Classification",
    venue="ECML",
    year=2001,
    identifier="10.1007/3-540-44795-4_13",
)
FRIEDMAN_1989 = Citation(
    key="friedman1989regularized",
    authors="Friedman",
    title="Regularized Discriminant Analysis",
    venue="Journal of the American Statistical Association 84(405)",
    year=1989,
    identifier="10.1080/01621459.1989.10478752",
)
FRIEDMAN_2001 = Citation(
    key="friedman2001boosting",
    authors="Friedman",
    title="Greedy Function Approximation: A Gradient Boosting Machine",
    venue="Annals of Statistics 29(5)",
    year=2001,
    identifier="10.1214/aos/1013203451",
)
LI_2006 = Citation(
    key="li2006projections",
    authors="Li, Hastie and Church",
    title="Very Sparse Random Projections",
    venue="KDD",
    year=2006,
    identifier="10.1145/1150402.1150436",
)
HALKO_2011 = Citation(
    key="halko2011randomized",
    authors="Halko, Martinsson and Tropp",
    title="Finding Structure with Randomness: Probabilistic Algorithms for Constructing Approximate Matrix Decompositions",
    venue="SIAM Review 53(2)",
    year=2011,
    identifier="arXiv:0909.4061",
)
ROSS_2008 = Citation(
    key="ross2008incremental",
    authors="Ross, Lim, Lin and Yang",
    title="Incremental Learning for Robust Visual Tracking",
    venue="International Journal of Computer Vision 77",
    year=2008,
)
BALLE_2022 = Citation(
    key="balle2022informed",
    authors="Balle, Cherubin and Hayes",
    title="Reconstructing Training Data with Informed Adversaries",
    venue="IEEE Symposium on Security and Privacy",
    year=2022,
    identifier="arXiv:2201.04845",
)
HAYES_2023 = Citation(
    key="hayes2023bounding",
    authors="Hayes, Mahloujifar and Balle",
    title="Bounding Training Data Reconstruction in DP-SGD",
    venue="NeurIPS",
    year=2023,
    identifier="arXiv:2302.07225",
)
KAISSIS_2023 = Citation(
    key="kaissis2023rero",
    authors="Kaissis, Hayes, Ziller and Rueckert",
    title="Bounding data reconstruction attacks with the hypothesis testing interpretation of differential privacy",
    venue="arXiv",
    year=2023,
    identifier="arXiv:2307.03928",
)
DONG_2022 = Citation(
    key="dong2022gdp",
    authors="Dong, Roth and Su",
    title="Gaussian Differential Privacy",
    venue="Journal of the Royal Statistical Society B 84(1)",
    year=2022,
    identifier="arXiv:1905.02383",
)
JEON_2021 = Citation(
    key="jeon2021gias",
    authors="Jeon, Kim, Lee, Oh and Ok",
    title="Gradient Inversion with Generative Image Prior",
    venue="NeurIPS",
    year=2021,
    identifier="arXiv:2110.14962",
)
NICHOL_2018 = Citation(
    key="nichol2018reptile",
    authors="Nichol, Achiam and Schulman",
    title="On First-Order Meta-Learning Algorithms",
    venue="arXiv",
    year=2018,
    identifier="arXiv:1803.02999",
)
GHILDYAL_2022 = Citation(
    key="ghildyal2022stlpips",
    authors="Ghildyal and Liu",
    title="Shift-tolerant Perceptual Similarity Metric",
    venue="ECCV",
    year=2022,
    identifier="arXiv:2207.13686",
)
CLOPPER_PEARSON_1934 = Citation(
    key="clopper1934",
    authors="Clopper and Pearson",
    title="The Use of Confidence or Fiducial Limits Illustrated in the Case of the Binomial",
    venue="Biometrika 26(4)",
    year=1934,
)
JAGIELSKI_2020 = Citation(
    key="jagielski2020auditing",
    authors="Jagielski, Ullman and Oprea",
    title="Auditing Differentially Private Machine Learning: How Private is Private SGD?",
    venue="NeurIPS",
    year=2020,
)
MAHLOUJIFAR_2025 = Citation(
    key="mahloujifar2025auditing",
    authors="Mahloujifar, Melis and Chaudhuri",
    title="Auditing f-Differential Privacy in One Run",
    venue="ICML",
    year=2025,
)
NASR_2023 = Citation(
    key="nasr2023tight",
    authors="Nasr et al.",
    title="Tight Auditing of Differentially Private Machine Learning",
    venue="USENIX Security",
    year=2023,
)
STEINKE_2023 = Citation(
    key="steinke2023onerun",
    authors="Steinke, Nasr and Jagielski",
    title="Privacy Auditing with One (1) Training Run",
    venue="NeurIPS",
    year=2023,
)
YE_LIM_2016 = Citation(
    key="ye2016schubert",
    authors="Ye and Lim",
    title="Schubert Varieties and Distances between Subspaces of Different Dimensions",
    venue="SIAM Journal on Matrix Analysis and Applications 37(3)",
    year=2016,
)
BELGHAZI_2018 = Citation(
    key="belghazi2018mine",
    authors="Belghazi et al.",
    title="Mutual Information Neural Estimation",
    venue="ICML",
    year=2018,
)
MCALLESTER_STRATOS_2020 = Citation(
    key="mcallester2020limitations",
    authors="McAllester and Stratos",
    title="Formal Limitations on the Measurement of Mutual Information",
    venue="AISTATS",
    year=2020,
)
KRASKOV_2004 = Citation(
    key="kraskov2004",
    authors="Kraskov, Stögbauer and Grassberger",
    title="Estimating Mutual Information",
    venue="Physical Review E 69",
    year=2004,
)
ROSS_2014 = Citation(
    key="ross2014discrete",
    authors="Ross",
    title="Mutual Information between Discrete and Continuous Data Sets",
    venue="PLoS ONE 9(2)",
    year=2014,
)
HOLMES_NEMENMAN_2019 = Citation(
    key="holmes2019",
    authors="Holmes and Nemenman",
    title="Estimation of Mutual Information for Real-valued Data with Error Bars and Controlled Bias",
    venue="Physical Review E 100",
    year=2019,
)
BALUNOVIC_2022 = Citation(
    key="balunovic2022lamp",
    authors="Balunović, Dimitrov, Jovanović and Vechev",
    title="LAMP: Extracting Text from Gradients with Language Model Priors",
    venue="NeurIPS",
    year=2022,
    identifier="arXiv:2202.08827",
)
DAGER_2024 = Citation(
    key="petrov2024dager",
    authors="Petrov, Dimitrov, Baader, Müller and Vechev",
    title="DAGER: Exact Gradient Inversion for Large Language Models",
    venue="NeurIPS",
    year=2024,
    identifier="arXiv:2405.15586",
)
FANO_1961 = Citation(
    key="fano1961",
    authors="Fano",
    title="Transmission of Information: A Statistical Theory of Communications",
    venue="MIT Press",
    year=1961,
)
PROAKIS_2008 = Citation(
    key="proakis2008",
    authors="Proakis and Salehi",
    title="Digital Communications, fifth edition",
    venue="McGraw-Hill",
    year=2008,
)
MELIS_2019 = Citation(
    key="melis2019unintended",
    authors="Melis, Song, De Cristofaro and Shmatikov",
    title="Exploiting Unintended Feature Leakage in Collaborative Learning",
    venue="IEEE Symposium on Security and Privacy",
    year=2019,
    identifier="arXiv:1805.04049",
)
PHONG_2018 = Citation(
    key="phong2018rows",
    authors="Phong, Aono, Hayashi, Wang and Moriai",
    title="Privacy-Preserving Deep Learning via Additively Homomorphic Encryption",
    venue="IEEE Transactions on Information Forensics and Security",
    year=2018,
    identifier="doi:10.1109/TIFS.2017.2787987",
)
LU_2022 = Citation(
    key="lu2022april",
    authors="Lu, Zhang, Zhao, He and Cheng",
    title="APRIL: Finding the Achilles' Heel on Privacy for Vision Transformers",
    venue="CVPR",
    year=2022,
    identifier="arXiv:2112.14087",
)
KARIYAPPA_2023 = Citation(
    key="kariyappa2023cpa",
    authors="Kariyappa, Guo, Maeng, Xiong, Suh, Qureshi and Lee",
    title="Cocktail Party Attack: Breaking Aggregation-Based Privacy in Federated Learning Using Independent Component Analysis",
    venue="ICML",
    year=2023,
    identifier="arXiv:2209.05578",
)
VERO_2023 = Citation(
    key="vero2023tableak",
    authors="Vero, Balunović, Dimitrov and Vechev",
    title="TabLeak: Tabular Data Leakage in Federated Learning",
    venue="ICML",
    year=2023,
    identifier="arXiv:2210.01785",
)
SUN_2021 = Citation(
    key="sun2021soteria",
    authors="Sun, Li, Wang, Yang, Li and Chen",
    title="Soteria: Provable Defense Against Privacy Leakage in Federated Learning From Representation Perspective",
    venue="CVPR",
    year=2021,
    identifier="arXiv:2012.06043",
)
BALUNOVIC_STAAB_2022 = Citation(
    key="balunovic2022bayesian",
    authors="Balunović, Dimitrov, Staab and Vechev",
    title="Bayesian Framework for Gradient Leakage",
    venue="ICLR",
    year=2022,
    identifier="arXiv:2111.04706",
)
WANG_2023 = Citation(
    key="wang2023outpost",
    authors="Wang, Hugh and Li",
    title="More than Enough is Too Much: Adaptive Defenses against Gradient Leakage in Production Federated Learning",
    venue="IEEE INFOCOM",
    year=2023,
)

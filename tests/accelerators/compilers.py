"""Prints the packages of the compilers that the installed JAX names, which need no dependencies to compile."""

from importlib.metadata import requires, version

if __name__ == "__main__":
    print(next(line.split(";")[0] for line in requires("jax") or () if line.startswith("libtpu")))
    for package in ("jax-cuda12-plugin", "jax-cuda12-pjrt"):
        print(f"{package}=={version('jaxlib')}")
    print("nvidia-cudnn-cu12>=9.8")

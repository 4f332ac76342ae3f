"""Random models as transformers and sentence-transformers write them."""

import types

import pytest

from endx_jax.encoders import ARCHITECTURES


@pytest.fixture(scope="session")
def reference():
    """PyTorch, transformers and sentence-transformers, which take seconds to import; and `write`."""
    import sentence_transformers as library
    import torch
    import transformers
    from sentence_transformers.sentence_transformer import modules

    def write(folder, model_type, keys, **save):
        """Writes an encoder whose biases and norms matter too."""
        config = transformers.AutoConfig.for_model(model_type, **keys)
        torch.manual_seed(0)
        model = getattr(transformers, ARCHITECTURES[model_type].transformers_class)(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape))
        model.save_pretrained(folder, **save)
        return folder

    return types.SimpleNamespace(torch=torch, transformers=transformers, library=library, modules=modules, write=write)

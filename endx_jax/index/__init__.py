"""Indexes of documents: their file, search, filters, evaluation, and the model that encodes them."""

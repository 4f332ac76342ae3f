"""Configurations, inside the package so that an installed wheel has them; `configs/` holds doors to them."""

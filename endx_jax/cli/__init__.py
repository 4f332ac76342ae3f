"""Command line, with one module for each verb."""

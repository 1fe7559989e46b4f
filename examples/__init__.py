"""A real model from start to report; see README.md in this folder."""

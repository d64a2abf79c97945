"""Measures every stage that is worth its time on this machine: `python <pack> bench`."""

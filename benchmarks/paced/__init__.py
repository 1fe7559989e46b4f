"""The driver against the clock: `bench driver --pace`."""

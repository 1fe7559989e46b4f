"""The ground floor: records, settings, errors and text that every other package
uses."""

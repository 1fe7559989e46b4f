"""Found in place of ray by the commands of tests that are not marked slow."""

raise RuntimeError("a command of a test that is not marked slow imports ray")

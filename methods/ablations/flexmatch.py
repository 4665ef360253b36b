"""FlexMatch where no released code settles the choice."""

from methods.flexmatch import FlexMatch


class Forgetful(FlexMatch):
    """A client begins every visit as if it had never been sure of an image."""

    scopes = {**FlexMatch.scopes, "status": "local", "beta": "local"}

"""FlexMatch in the choice that nobody has released."""

from methods.flexmatch import FlexMatch


class Forgetful(FlexMatch):
    """A client begins every visit as if it had never been sure of an image."""

    scopes = {**FlexMatch.scopes, "status": "local", "beta": "local"}

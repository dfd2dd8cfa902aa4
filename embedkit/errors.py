"""The errors a user can cause: each message names the value and the remedy."""


class UserError(ValueError):
    """A mistake that the user can mend. The command line prints it on one line and exits with 2."""


class DataError(UserError):
    """A manifest, file or row that cannot be used as it is."""

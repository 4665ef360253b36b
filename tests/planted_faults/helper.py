"""What a method's module imports."""

VISITED: list[int] = []

"""How fast updates, the world and training are: contenders measured in turn, beside what a user would run instead."""

"""The studies: each is data, who learns in which worlds for how long; ``study.py`` carries all of them out."""

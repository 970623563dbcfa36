"""`python -m replicated_kv`."""

from replicated_kv.commands import main

if __name__ == "__main__":
    main()

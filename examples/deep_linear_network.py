"""The deep linear network of santurkar2018: `python examples/deep_linear_network.py --out .`"""

from wellcond.experiments.santurkar2018_deep_linear import main

if __name__ == "__main__":
    main()

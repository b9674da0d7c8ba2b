"""`python -m tests.sim`: run the whole broker in the simulation. tests/sim/many.py says what may be asked for."""

import sys

from tests.sim.many import Kind, main
from tests.sim.run import Simulation

KIND = Kind(Simulation, "sim", ("callbacks", "written", "acknowledged", "read", "deaths"))

if __name__ == "__main__":
    sys.exit(main(KIND, prog="python -m tests.sim", description=(__doc__ or "").split(".")[0]))

import osq_rl
import osq_gen
import osq_repr
import osq_more

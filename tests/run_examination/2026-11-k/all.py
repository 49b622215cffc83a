"""All cases."""

import rnk_faults_a
import rnk_faults_b
import rnk_healthy_a
import rnk_healthy_b

__all__ = ["rnk_faults_a", "rnk_faults_b", "rnk_healthy_a", "rnk_healthy_b"]

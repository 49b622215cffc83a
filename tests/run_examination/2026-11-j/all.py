"""All cases."""
import rnj_faults_a
import rnj_faults_b
import rnj_healthy_a
import rnj_healthy_b

__all__ = ["rnj_faults_a", "rnj_faults_b", "rnj_healthy_a", "rnj_healthy_b"]

"""All cases of this examination."""

import rni_faults_a
import rni_faults_b
import rni_healthy_a
import rni_healthy_b

__all__ = ["rni_faults_a", "rni_faults_b", "rni_healthy_a", "rni_healthy_b"]

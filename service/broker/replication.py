"""What the metadata says about a partition becomes its role on this broker.

Called by `Holdings`, in the order of the metadata's commits.
"""

from service.broker.partition import Partition
from service.cluster.image import PartitionState


class Replication:
    def lead(self, partition: Partition, state: PartitionState, *, fsync: bool) -> bool:
        """This broker leads; True if a leadership begins, else something about the one there is may have changed."""
        begins = partition.replicas is None or partition.leader_epoch != state.leader_epoch
        if begins:
            partition.lead(state.leader_epoch, state.leader, state.replicas, state.isr, fsync=fsync)
        elif partition.replicas is not None and partition.replicas.isr != state.isr:
            partition.replicas.decided(state.isr)
        return begins

    def follow(self, partition: Partition, state: PartitionState) -> None:
        """Another broker leads, or nobody does."""
        if partition.replicas is not None:
            partition.resign()

    def stop(self, partition: Partition) -> None:
        """The partition is not this broker's any more, or the broker doesn't know what the metadata says now."""
        partition.resign()

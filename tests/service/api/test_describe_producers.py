"""DescribeProducers on several brokers."""

from pathlib import Path

from service.wire.messages import DescribeProducersRequest, DescribeProducersRequestTopicRequest, ProducerState
from tests.service.broker.cluster_stage import TOPIC, ClusterStage, on_cluster_stage


def test_every_replica_tells_of_its_own_log(tmp_path: Path) -> None:
    """As in Kafka: its tool asks one broker about all that it holds, led by it or not."""

    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2)
        await stage.write("open", producer_id=7, producer_epoch=3, base_sequence=0, transactional=True)
        await stage.alike(1, 2)
        asked = DescribeProducersRequest([DescribeProducersRequestTopicRequest(TOPIC, [0])])
        told: list[ProducerState] = []
        for broker in (1, 2):
            [described] = (await stage.wire(broker).ask(asked)).topics[0].partitions
            assert described.error_code == 0
            told += described.active_producers
        assert told[0] == told[1]
        assert (told[1].producer_id, told[1].current_txn_start_offset) == (7, 0)
        stage.partition(2).fail()
        [described] = (await stage.wire(2).ask(asked)).topics[0].partitions
        assert described.error_code == 56

    on_cluster_stage(tmp_path, scene, 1, 2)

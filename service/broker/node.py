"""The broker as a whole: its parts, its start and its stop.

Start: claim the data folders, start the metadata, open every partition that the metadata gives this broker, register,
lead. From then on every change of the metadata image is followed, in the order of commits. Stop: take no more requests,
make everything durable, write the manifest last.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from log.disk import Disk
from log.ids import format_topic_id
from log.steps import done_at_once
from service.broker.closing import close_logs
from service.broker.compactor import Compactor
from service.broker.coordination import Coordination
from service.broker.copies import WITHIN_S, Copies
from service.broker.data_folder import Claimed, StartError
from service.broker.fetch_sessions import FetchSessions
from service.broker.folder_moves import FolderMoves
from service.broker.health import Health
from service.broker.holdings import Holdings
from service.broker.housekeeper import Housekeeper
from service.broker.inspector import Inspector
from service.broker.internal_topics import least_in_sync
from service.broker.joining import join
from service.broker.log_folder import LogFolder
from service.broker.loop_watch import LoopWatch
from service.broker.opening import PartitionMaker
from service.broker.partition_table import PartitionTable
from service.broker.peers import Peers
from service.broker.replication import FetchingParts, Replication, address_of
from service.broker.tally import COUNTED_A_TURN, LeadershipTally, RequestTally
from service.broker.writing import WritingParts
from service.cluster.duties import Duties
from service.cluster.image import Delta, Image, difference
from service.cluster.metadata import ClusterMetadata, MetadataLost
from service.ports import Env
from service.settings.broker import BrokerConfig, Endpoint
from service.stores.port import MetadataStore
from service.turns import done_in_turns


class Broker:
    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        store: MetadataStore,
        disks: Mapping[str, Disk],
        offered: Mapping[int, tuple[int, int]],
    ) -> None:
        self.env = env
        self.config = config
        self.offered = offered
        self.metadata = ClusterMetadata(
            store,
            env,
            session_timeout_s=config.session_timeout_s,
            min_in_sync=lambda: config.min_insync_replicas,
        )
        self.partitions = PartitionTable()
        self.requests = RequestTally()
        self.leaderships = LeadershipTally(lambda: self.metadata.broker_id, env.clock)
        self.folders = [
            LogFolder(
                name,
                disk,
                lambda folder: self.holdings.folder_failed(folder),
                reserve_bytes=config.log_reserve_bytes,
            )
            for name, disk in disks.items()
        ]
        self.fetch_sessions = FetchSessions(slots=config.max_incremental_fetch_session_cache_slots)
        self.housekeeper = Housekeeper(env, config, self.partitions, self.folders)
        self.loop_watch = LoopWatch()
        self.replication = Replication(FetchingParts(env, config, self.metadata, self.housekeeper), self.partitions)
        coordination = self.coordination = Coordination(
            env, config, self.metadata, self.partitions, self.replication.leave_to_others
        )
        self.health = Health(env, config, self.metadata, self.partitions, self.replication)
        self.writing = WritingParts(
            config, env, Inspector(env), coordination.transaction_gate, self.replication.in_sync
        )
        self.maker = PartitionMaker(env, config, self.partitions, self.folders, self.housekeeper)
        self.moves = FolderMoves(env, self.metadata, self.partitions, self.folders, self.maker, self.housekeeper)
        self.compactor = Compactor(env, config, self.partitions, self.moves)
        self.holdings = Holdings(
            env.tasks,
            config,
            self.metadata,
            self.partitions,
            self.maker,
            coordination,
            self.replication,
        )
        self.metadata.on_session_lost = self.holdings.step_down
        self._copies_peers = Peers(config, self.metadata, lanes=1, timeout_s=WITHIN_S)
        self.copies = Copies(self._copies_peers, env.tasks)
        self.duties = Duties(
            *(env, config, self.metadata),
            lambda broker: address_of(broker, config.inter_broker_listener_name),
            least_in_sync(config),
            self.copies.best_first,
            self.copies.without_any,
        )
        self._claimed = Claimed((), "")
        self._opened = Image()
        self.bootstrap = ""
        self.ready = asyncio.Event()

    # -- life

    async def open(self, may_start: Callable[[ClusterMetadata], None] = lambda metadata: None) -> None:
        """Do all that needs no listener: claim the folders, open the logs. `may_start` is called before a log is
        touched; if it raises, the last stop counts as before, and the next start need not read the logs again.
        """
        self._claimed = await join(
            {folder.name: folder.disk for folder in self.folders},
            self.metadata,
            configured_id=self.config.node_id,
            listener=self.config.inter_broker_listener_name,
            fresh_id=lambda: format_topic_id(self.env.unique()),
        )
        may_start(self.metadata)
        for folder in self.folders:
            await folder.headroom.begin()
        self._opened = self.metadata.image
        self.holdings.learn_settings(self._opened)
        await self.maker.open_all(self._opened, self.metadata.broker_id)

    async def register(self, endpoints: Sequence[Endpoint]) -> None:
        """Join the cluster, and lead the partitions that the metadata gives this broker. Requests are answered from
        then on.
        """
        self.bootstrap = endpoints[0].address
        self.metadata.subscribe(self.holdings.follow)
        self.metadata.subscribe(self._count_leaderships)
        self.metadata.subscribe(self.duties.heard)
        self.holdings.follow(difference(self._opened, self.metadata.image))  # what changed while the logs were opened
        try:
            await self.metadata.register(
                tuple(endpoints),
                rack=self.config.broker_rack,
                closed_life=self.maker.closed_life,
                directories=self._claimed.directories,
                place=self._claimed.place,
                lost=self.maker.losses.lost,
            )
        except MetadataLost as lost:
            raise StartError(f"the cluster refused this broker: {lost}") from None
        await self.maker.told()
        self.metadata.on_session_regained = self._regained
        if not self.metadata.trouble:  # else the session ended meanwhile, and this broker leads when there is one again
            self.holdings.begin()
        await self.holdings.even()
        self.replication.begin()
        for folder in self.folders:
            folder.begin(self.env.tasks)
        self.env.tasks.spawn("housekeeper", self.housekeeper.run())
        self.env.tasks.spawn("compactor", self.compactor.run())
        self.moves.resume()
        self.env.tasks.spawn("moves between folders", self.moves.run())
        await self.duties.begin()
        self.env.tasks.spawn("duties in the cluster", self.duties.run())
        self.duties.stir()
        self.ready.set()

    def _count_leaderships(self, delta: Delta) -> None:
        counting = self.leaderships.heard(delta)
        if len(delta.partitions) < COUNTED_A_TURN:
            done_at_once(counting)
        else:
            self.env.tasks.spawn("count leaderships", done_in_turns(counting))

    def _regained(self) -> None:
        self.holdings.begin()
        self.duties.stir()

    async def stop(self) -> None:
        """Make everything durable, then write the manifest. No request may be under way any more."""
        self.coordination.end()
        # From here on nothing is written, whatever the metadata says. The port is closed, so the cluster may take this
        # broker for dead. If it joined again, the manifest would name the life before.
        self.metadata.stay_out()
        self.metadata.unsubscribe(self.holdings.follow)
        self.holdings.stop()
        await self.env.tasks.cancel_all()
        for folder in self.folders:
            async with folder.laying:  # the disk is needed until the last large batch is refused, and its file removed
                pass
        await self.coordination.close()
        await self._copies_peers.close()
        await self.holdings.end()
        await close_logs(self.partitions, self.folders, self.housekeeper, life=self.metadata.life)
        await self.metadata.close()

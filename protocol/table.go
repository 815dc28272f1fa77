package protocol

// Keys that code names; the rest stand in the table only.
const (
	KeyProduce                 int16 = 0
	KeyFetch                   int16 = 1
	KeyListOffsets             int16 = 2
	KeyMetadata                int16 = 3
	KeyControlledShutdown      int16 = 7
	KeyFindCoordinator         int16 = 10
	KeySaslHandshake           int16 = 17
	KeyApiVersions             int16 = 18
	KeyDeleteTopics            int16 = 20
	KeyDeleteRecords           int16 = 21
	KeyOffsetForLeaderEpoch    int16 = 23
	KeyAlterConfigs            int16 = 33
	KeySaslAuthenticate        int16 = 36
	KeyCreatePartitions        int16 = 37
	KeyIncrementalAlterConfigs int16 = 44
	KeyDescribeCluster         int16 = 60
	KeyDescribeProducers       int16 = 61
	KeyDescribeTopicPartitions int16 = 75
	KeyShareFetch              int16 = 78
	KeyShareAcknowledge        int16 = 79
	KeyDescribeShareOffsets    int16 = 90
	KeyAlterShareOffsets       int16 = 91
)

// Touch says why the proxy can't simply pass an API on; bits add up.
type Touch uint8

const (
	// TouchAddresses: some version's answer holds brokers' addresses (RewriteAddresses).
	TouchAddresses Touch = 1 << iota
	// TouchOffsets: offsets of mirror topics are mapped between p and v.
	TouchOffsets
	// TouchEpochs: leader epochs of mirror topics are mapped.
	TouchEpochs
	// TouchHandled: requests that name a mirror topic are answered by a handler.
	TouchHandled
	// TouchRefused: a handler may refuse it on mirror topics.
	TouchRefused
	// TouchBlocked: never passes a client proxy: between brokers and controllers,
	// or not advertised for another reason. Not in ApiVersions; a request for it
	// closes the connection as an unknown API does.
	TouchBlocked
)

// API is one line of the table.
type API struct {
	Key          int16
	Name         string // Kafka's
	Min, Max     int16  // reviewed versions, both included; what ApiVersions shows at most
	FlexibleFrom int16  // first flexible version (KIP-482): request header v2, response header v1
	Touch        Touch
	Why          string
	Offsets      string // offsets and leader epochs of mirror topics in it: "none", or how they are treated
}

// Has says whether any bit of t is set.
func (a API) Has(t Touch) bool { return a.Touch&t != 0 }

// Advertised says whether the API is shown to clients at all.
func (a API) Advertised() bool { return a.Touch&TouchBlocked == 0 }

// Flexible says whether a version uses compact lengths and tagged fields.
func (a API) Flexible(version int16) bool { return version >= a.FlexibleFrom }

// RequestHeaderVersion is 0 (no client id), 1 or 2 (tagged fields).
func (a API) RequestHeaderVersion(version int16) int {
	switch {
	case a.Key == KeyControlledShutdown && version == 0:
		return 0
	case a.Flexible(version):
		return 2
	}
	return 1
}

// ResponseHeaderVersion is 0 or 1 (tagged fields); for ApiVersions always 0.
func (a API) ResponseHeaderVersion(version int16) int {
	if a.Key != KeyApiVersions && a.Flexible(version) {
		return 1
	}
	return 0
}

// MaxHandled is the largest request frame, in bytes, that should be buffered and
// decoded for a handler; limit is the connection's own. Decoded structs take up
// to about 30 times the bytes of the smallest elements a client can send, so
// that everything but Produce, whose records aren't decoded, gets 4 MiB at most
// (some 100,000 partitions). What is only passed on needs no such limit.
func (a API) MaxHandled(limit int) int {
	if a.Key == KeyProduce {
		return limit
	}
	return min(limit, 4<<20)
}

// LookupAPI finds a key in the table.
func LookupAPI(key int16) (API, bool) {
	if key < 0 || int(key) >= len(table) {
		return API{}, false
	}
	return table[key], true
}

// APIs returns a copy of the table, by key.
func APIs() []API { return append([]API(nil), table[:]...) }

const (
	never = 1<<15 - 1 // no flexible version
	none  = "none"
)

// table is read-only. The index is the key. Ranges are kmsg's, checked against
// the message definitions of Kafka 4.3.1; where kmsg is ahead of it (DeleteGroups
// v3, TxnOffsetCommit v6, Streams v1) against kmsg alone. A new version of kmsg that knows
// more keys or versions fails a test until its line here was reviewed: does the
// version carry addresses, offsets or leader epochs in a new place?
var table = [...]API{
	{0, "Produce", 0, 13, 9, TouchHandled | TouchAddresses | TouchOffsets | TouchEpochs | TouchRefused, "refused unless STOPPED. NodeEndpoints v10+. Min stays 0: librdkafka derives features from it", "STOPPED: base offset p→v, log start offset; CurrentLeader v10+ gets the bump"},
	{1, "Fetch", 4, 18, 12, TouchHandled | TouchAddresses | TouchOffsets | TouchEpochs, "NodeEndpoints v16+; sessions are the proxy's (M3). Below v4 brokers convert and stamps vanish (M16)", "fetch offset, epochs and stamps p↔v; high watermark, last stable and log start offset, diverging epoch, aborted transactions in v; CurrentLeader v12+ gets the bump"},
	{2, "ListOffsets", 0, 11, 6, TouchHandled | TouchOffsets | TouchEpochs, "answered from what the broker says", "offsets and epochs of the virtual log"},
	{3, "Metadata", 0, 13, 9, TouchAddresses | TouchEpochs, "brokers", "leader epoch v7+ gets the bump"},
	{4, "LeaderAndIsr", 0, 7, 4, TouchBlocked, "controller to broker (ZooKeeper)", none},
	{5, "StopReplica", 0, 4, 2, TouchBlocked, "controller to broker (ZooKeeper)", none},
	{6, "UpdateMetadata", 0, 8, 6, TouchBlocked, "controller to broker (ZooKeeper)", none},
	{7, "ControlledShutdown", 0, 3, 3, TouchBlocked, "broker to controller; header v0 without client id at v0", none},
	{8, "OffsetCommit", 0, 10, 8, 0, "", "virtual already, pass"},
	{9, "OffsetFetch", 0, 10, 6, 0, "", "virtual already, pass"},
	{10, "FindCoordinator", 0, 6, 3, TouchAddresses, "coordinator's address, unless node −1", none},
	{11, "JoinGroup", 0, 9, 6, 0, "", none},
	{12, "Heartbeat", 0, 4, 4, 0, "", none},
	{13, "LeaveGroup", 0, 5, 4, 0, "", none},
	{14, "SyncGroup", 0, 5, 4, 0, "", none},
	{15, "DescribeGroups", 0, 6, 5, 0, "", none},
	{16, "ListGroups", 0, 5, 3, 0, "", none},
	{17, "SaslHandshake", 0, 1, never, 0, "bare tokens without a header follow v0: passed by mechanism (proxy/sasl.go)", none},
	{18, "ApiVersions", 0, 4, 3, TouchHandled, "answer cut down to this table. v5 (KIP-1242) not advertised: it carries cluster and node id", none},
	{19, "CreateTopics", 0, 7, 5, 0, "", none},
	{20, "DeleteTopics", 0, 6, 4, TouchHandled | TouchRefused, "refused on mirror topics unless STOPPED", none},
	{21, "DeleteRecords", 0, 2, 2, TouchHandled | TouchOffsets | TouchRefused, "refused unless STOPPED (M7)", "STOPPED: offset v→p, low watermark p→v"},
	{22, "InitProducerId", 0, 5, 2, 0, "", none},
	{23, "OffsetForLeaderEpoch", 0, 4, 4, TouchHandled | TouchOffsets | TouchEpochs, "answered from the virtual chain", "epochs and end offset of the virtual log"},
	{24, "AddPartitionsToTxn", 0, 5, 3, 0, "no records, opens no transaction by itself", none},
	{25, "AddOffsetsToTxn", 0, 4, 3, 0, "", none},
	{26, "EndTxn", 0, 5, 3, 0, "no offsets", none},
	{27, "WriteTxnMarkers", 0, 2, 1, 0, "no offsets; brokers want CLUSTER_ACTION", none},
	{28, "TxnOffsetCommit", 0, 6, 3, 0, "", "virtual already, pass"},
	{29, "DescribeAcls", 0, 3, 2, 0, "", none},
	{30, "CreateAcls", 0, 3, 2, 0, "", none},
	{31, "DeleteAcls", 0, 3, 2, 0, "", none},
	{32, "DescribeConfigs", 0, 4, 4, 0, "shows the broker's own advertised.listeners; documented", none},
	{33, "AlterConfigs", 0, 2, 2, TouchHandled | TouchRefused, "refused on mirror topics unless STOPPED: it resets what it doesn't name; compact never with dead records in front (M17)", none},
	{34, "AlterReplicaLogDirs", 0, 2, 2, 0, "", none},
	{35, "DescribeLogDirs", 0, 5, 2, 0, "", "offset lag and sizes are physical; documented"},
	{36, "SaslAuthenticate", 0, 2, 2, 0, "", none},
	{37, "CreatePartitions", 0, 3, 2, TouchHandled | TouchRefused, "refused on mirror topics unless STOPPED", none},
	{38, "CreateDelegationToken", 0, 3, 2, 0, "", none},
	{39, "RenewDelegationToken", 0, 2, 2, 0, "", none},
	{40, "ExpireDelegationToken", 0, 2, 2, 0, "", none},
	{41, "DescribeDelegationToken", 0, 3, 2, 0, "", none},
	{42, "DeleteGroups", 0, 3, 2, 0, "", none},
	{43, "ElectLeaders", 0, 2, 2, 0, "elections are the destination's own", none},
	{44, "IncrementalAlterConfigs", 0, 1, 1, TouchHandled | TouchRefused, "configs that break a mirror are refused on its topics (M17)", none},
	{45, "AlterPartitionReassignments", 0, 1, 0, 0, "", none},
	{46, "ListPartitionReassignments", 0, 0, 0, 0, "", none},
	{47, "OffsetDelete", 0, 0, never, 0, "", none},
	{48, "DescribeClientQuotas", 0, 1, 1, 0, "", none},
	{49, "AlterClientQuotas", 0, 1, 1, 0, "", none},
	{50, "DescribeUserScramCredentials", 0, 0, 0, 0, "", none},
	{51, "AlterUserScramCredentials", 0, 0, 0, 0, "", none},
	{52, "Vote", 0, 2, 0, TouchBlocked, "KRaft voters", none},
	{53, "BeginQuorumEpoch", 0, 1, 1, TouchBlocked, "KRaft voters", none},
	{54, "EndQuorumEpoch", 0, 1, 1, TouchBlocked, "KRaft voters", none},
	{55, "DescribeQuorum", 0, 2, 0, 0, "v2 lists controllers' listeners; clients don't dial them; documented", "of the metadata log, not of topics: pass"},
	{56, "AlterPartition", 0, 3, 0, TouchBlocked, "broker to controller", none},
	{57, "UpdateFeatures", 0, 2, 0, 0, "", none},
	{58, "Envelope", 0, 0, 0, TouchBlocked, "broker to controller: carries requests in another's name", none},
	{59, "FetchSnapshot", 0, 1, 0, TouchBlocked, "KRaft replicas", none},
	{60, "DescribeCluster", 0, 2, 0, TouchAddresses, "brokers, but not controllers (endpoint type 2)", none},
	{61, "DescribeProducers", 0, 0, 0, TouchOffsets, "answer changed", "current transaction's start p→v, −1 where hidden (M13)"},
	{62, "BrokerRegistration", 0, 4, 0, TouchBlocked, "broker to controller", none},
	{63, "BrokerHeartbeat", 0, 2, 0, TouchBlocked, "broker to controller", none},
	{64, "UnregisterBroker", 0, 0, 0, 0, "", none},
	{65, "DescribeTransactions", 0, 0, 0, 0, "", none},
	{66, "ListTransactions", 0, 2, 0, 0, "", none},
	{67, "AllocateProducerIds", 0, 0, 0, TouchBlocked, "broker to controller", none},
	{68, "ConsumerGroupHeartbeat", 0, 1, 0, 0, "", none},
	{69, "ConsumerGroupDescribe", 0, 1, 0, 0, "", none},
	{70, "ControllerRegistration", 0, 0, 0, TouchBlocked, "controllers", none},
	{71, "GetTelemetrySubscriptions", 0, 0, 0, TouchBlocked, "telemetry: brokers without a reporter don't advertise it", none},
	{72, "PushTelemetry", 0, 0, 0, TouchBlocked, "telemetry: brokers without a reporter don't advertise it", none},
	{73, "AssignReplicasToDirs", 0, 0, 0, TouchBlocked, "broker to controller", none},
	{74, "ListConfigResources", 0, 1, 0, 0, "", none},
	{75, "DescribeTopicPartitions", 0, 0, 0, TouchEpochs, "answer changed", "leader epoch gets the bump"},
	{76, "ShareGroupHeartbeat", 0, 1, 0, 0, "", none},
	{77, "ShareGroupDescribe", 0, 1, 0, 0, "", none},
	{78, "ShareFetch", 0, 2, 0, TouchHandled | TouchAddresses | TouchEpochs | TouchRefused, "refused on mirror topics (M12); NodeEndpoints", "no offsets, as it is refused; CurrentLeader gets the bump"},
	{79, "ShareAcknowledge", 0, 2, 0, TouchHandled | TouchAddresses | TouchEpochs | TouchRefused, "as ShareFetch", "as ShareFetch"},
	{80, "AddRaftVoter", 0, 1, 0, 0, "", none},
	{81, "RemoveRaftVoter", 0, 0, 0, 0, "", none},
	{82, "UpdateRaftVoter", 0, 0, 0, TouchBlocked, "KRaft voters", none},
	{83, "InitializeShareGroupState", 0, 0, 0, TouchBlocked, "between group coordinator and share coordinator", none},
	{84, "ReadShareGroupState", 0, 0, 0, TouchBlocked, "between group coordinator and share coordinator", none},
	{85, "WriteShareGroupState", 0, 1, 0, TouchBlocked, "between group coordinator and share coordinator", none},
	{86, "DeleteShareGroupState", 0, 0, 0, TouchBlocked, "between group coordinator and share coordinator", none},
	{87, "ReadShareGroupStateSummary", 0, 1, 0, TouchBlocked, "between group coordinator and share coordinator", none},
	{88, "StreamsGroupHeartbeat", 0, 1, 0, 0, "endpoints in it are the applications' own: stay", "task offsets are virtual already, pass"},
	{89, "StreamsGroupDescribe", 0, 1, 0, 0, "endpoints in it are the applications' own: stay", "task offsets are virtual already, pass"},
	{90, "DescribeShareGroupOffsets", 0, 1, 0, TouchOffsets, "answer changed: an error for mirror topics", "share offsets are physical: not shown (M12)"},
	{91, "AlterShareGroupOffsets", 0, 0, 0, TouchHandled | TouchRefused, "refused on mirror topics", "share offsets are physical: refused (M12)"},
	{92, "DeleteShareGroupOffsets", 0, 0, 0, 0, "", none},
	{93, "StreamsGroupTopologyDescriptionUpdate", 0, 0, 0, 0, "newer than Kafka 4.3; no addresses", none},
	{94, "UnregisterController", 0, 0, 0, 0, "newer than Kafka 4.3; no addresses", none},
}

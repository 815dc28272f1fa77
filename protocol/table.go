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

const never = 1<<15 - 1 // no flexible version

// table is read-only. The index is the key. Ranges are kmsg's, checked against
// the message definitions of Kafka 4.3.1; where kmsg is ahead of it (DeleteGroups
// v3, TxnOffsetCommit v6, Streams v1) against kmsg alone. A new version of kmsg that knows
// more keys or versions fails a test until its line here was reviewed: does the
// version carry addresses, offsets or leader epochs in a new place?
var table = [...]API{
	{0, "Produce", 0, 13, 9, TouchHandled | TouchAddresses | TouchOffsets | TouchEpochs | TouchRefused, "refused unless STOPPED; base offset p→v; CurrentLeader v10+, NodeEndpoints v10+. Min stays 0: librdkafka derives features from it"},
	{1, "Fetch", 4, 18, 12, TouchHandled | TouchAddresses | TouchOffsets | TouchEpochs, "p↔v, stamps, sessions; CurrentLeader v12+, NodeEndpoints v16+. Below v4 brokers convert and stamps vanish (M16)"},
	{2, "ListOffsets", 0, 11, 6, TouchHandled | TouchOffsets | TouchEpochs, "offsets and epochs of the virtual log"},
	{3, "Metadata", 0, 13, 9, TouchAddresses | TouchEpochs, "brokers; leader epoch v7+ gets the bump"},
	{4, "LeaderAndIsr", 0, 7, 4, TouchBlocked, "controller to broker (ZooKeeper)"},
	{5, "StopReplica", 0, 4, 2, TouchBlocked, "controller to broker (ZooKeeper)"},
	{6, "UpdateMetadata", 0, 8, 6, TouchBlocked, "controller to broker (ZooKeeper)"},
	{7, "ControlledShutdown", 0, 3, 3, TouchBlocked, "broker to controller; header v0 without client id at v0"},
	{8, "OffsetCommit", 0, 10, 8, 0, "committed offsets are virtual already"},
	{9, "OffsetFetch", 0, 10, 6, 0, "committed offsets are virtual already"},
	{10, "FindCoordinator", 0, 6, 3, TouchAddresses, "coordinator's address, unless node −1"},
	{11, "JoinGroup", 0, 9, 6, 0, ""},
	{12, "Heartbeat", 0, 4, 4, 0, ""},
	{13, "LeaveGroup", 0, 5, 4, 0, ""},
	{14, "SyncGroup", 0, 5, 4, 0, ""},
	{15, "DescribeGroups", 0, 6, 5, 0, ""},
	{16, "ListGroups", 0, 5, 3, 0, ""},
	{17, "SaslHandshake", 0, 1, never, 0, "bare tokens without a header follow v0: passed by mechanism (proxy/sasl.go)"},
	{18, "ApiVersions", 0, 4, 3, TouchHandled, "answer cut down to this table. v5 (KIP-1242) not advertised: it carries cluster and node id"},
	{19, "CreateTopics", 0, 7, 5, 0, ""},
	{20, "DeleteTopics", 0, 6, 4, TouchHandled | TouchRefused, "refused on mirror topics unless STOPPED"},
	{21, "DeleteRecords", 0, 2, 2, TouchHandled | TouchOffsets | TouchRefused, "refused unless STOPPED; then v→p and back (M7)"},
	{22, "InitProducerId", 0, 5, 2, 0, ""},
	{23, "OffsetForLeaderEpoch", 0, 4, 4, TouchHandled | TouchOffsets | TouchEpochs, "answered from the virtual chain"},
	{24, "AddPartitionsToTxn", 0, 5, 3, 0, "no records, opens no transaction by itself"},
	{25, "AddOffsetsToTxn", 0, 4, 3, 0, ""},
	{26, "EndTxn", 0, 5, 3, 0, "no offsets"},
	{27, "WriteTxnMarkers", 0, 2, 1, 0, "no offsets; brokers want CLUSTER_ACTION"},
	{28, "TxnOffsetCommit", 0, 6, 3, 0, "committed offsets are virtual already"},
	{29, "DescribeAcls", 0, 3, 2, 0, ""},
	{30, "CreateAcls", 0, 3, 2, 0, ""},
	{31, "DeleteAcls", 0, 3, 2, 0, ""},
	{32, "DescribeConfigs", 0, 4, 4, 0, "shows the broker's own advertised.listeners; documented"},
	{33, "AlterConfigs", 0, 2, 2, TouchHandled | TouchRefused, "refused on mirror topics unless STOPPED: it resets what it doesn't name; compact never with dead records in front (M17)"},
	{34, "AlterReplicaLogDirs", 0, 2, 2, 0, ""},
	{35, "DescribeLogDirs", 0, 5, 2, 0, "physical offsets lag and sizes; documented"},
	{36, "SaslAuthenticate", 0, 2, 2, 0, ""},
	{37, "CreatePartitions", 0, 3, 2, TouchHandled | TouchRefused, "refused on mirror topics unless STOPPED"},
	{38, "CreateDelegationToken", 0, 3, 2, 0, ""},
	{39, "RenewDelegationToken", 0, 2, 2, 0, ""},
	{40, "ExpireDelegationToken", 0, 2, 2, 0, ""},
	{41, "DescribeDelegationToken", 0, 3, 2, 0, ""},
	{42, "DeleteGroups", 0, 3, 2, 0, ""},
	{43, "ElectLeaders", 0, 2, 2, 0, "elections are the destination's own"},
	{44, "IncrementalAlterConfigs", 0, 1, 1, TouchHandled | TouchRefused, "configs that break a mirror are refused on its topics (M17)"},
	{45, "AlterPartitionReassignments", 0, 1, 0, 0, ""},
	{46, "ListPartitionReassignments", 0, 0, 0, 0, ""},
	{47, "OffsetDelete", 0, 0, never, 0, ""},
	{48, "DescribeClientQuotas", 0, 1, 1, 0, ""},
	{49, "AlterClientQuotas", 0, 1, 1, 0, ""},
	{50, "DescribeUserScramCredentials", 0, 0, 0, 0, ""},
	{51, "AlterUserScramCredentials", 0, 0, 0, 0, ""},
	{52, "Vote", 0, 2, 0, TouchBlocked, "KRaft voters"},
	{53, "BeginQuorumEpoch", 0, 1, 1, TouchBlocked, "KRaft voters"},
	{54, "EndQuorumEpoch", 0, 1, 1, TouchBlocked, "KRaft voters"},
	{55, "DescribeQuorum", 0, 2, 0, 0, "v2 lists controllers' listeners; clients don't dial them; documented"},
	{56, "AlterPartition", 0, 3, 0, TouchBlocked, "broker to controller"},
	{57, "UpdateFeatures", 0, 2, 0, 0, ""},
	{58, "Envelope", 0, 0, 0, TouchBlocked, "broker to controller: carries requests in another's name"},
	{59, "FetchSnapshot", 0, 1, 0, TouchBlocked, "KRaft replicas"},
	{60, "DescribeCluster", 0, 2, 0, TouchAddresses, "brokers, but not controllers (endpoint type 2)"},
	{61, "DescribeProducers", 0, 0, 0, TouchOffsets, "answer: CurrentTxnStartOffset p→v, −1 where hidden (M13)"},
	{62, "BrokerRegistration", 0, 4, 0, TouchBlocked, "broker to controller"},
	{63, "BrokerHeartbeat", 0, 2, 0, TouchBlocked, "broker to controller"},
	{64, "UnregisterBroker", 0, 0, 0, 0, ""},
	{65, "DescribeTransactions", 0, 0, 0, 0, ""},
	{66, "ListTransactions", 0, 2, 0, 0, ""},
	{67, "AllocateProducerIds", 0, 0, 0, TouchBlocked, "broker to controller"},
	{68, "ConsumerGroupHeartbeat", 0, 1, 0, 0, ""},
	{69, "ConsumerGroupDescribe", 0, 1, 0, 0, ""},
	{70, "ControllerRegistration", 0, 0, 0, TouchBlocked, "controllers"},
	{71, "GetTelemetrySubscriptions", 0, 0, 0, TouchBlocked, "telemetry: brokers without a reporter don't advertise it"},
	{72, "PushTelemetry", 0, 0, 0, TouchBlocked, "telemetry: brokers without a reporter don't advertise it"},
	{73, "AssignReplicasToDirs", 0, 0, 0, TouchBlocked, "broker to controller"},
	{74, "ListConfigResources", 0, 1, 0, 0, ""},
	{75, "DescribeTopicPartitions", 0, 0, 0, TouchEpochs, "leader epoch gets the bump"},
	{76, "ShareGroupHeartbeat", 0, 1, 0, 0, ""},
	{77, "ShareGroupDescribe", 0, 1, 0, 0, ""},
	{78, "ShareFetch", 0, 2, 0, TouchHandled | TouchAddresses | TouchEpochs | TouchRefused, "refused on mirror topics (M12); CurrentLeader, NodeEndpoints"},
	{79, "ShareAcknowledge", 0, 2, 0, TouchHandled | TouchAddresses | TouchEpochs | TouchRefused, "as ShareFetch"},
	{80, "AddRaftVoter", 0, 1, 0, 0, ""},
	{81, "RemoveRaftVoter", 0, 0, 0, 0, ""},
	{82, "UpdateRaftVoter", 0, 0, 0, TouchBlocked, "KRaft voters"},
	{83, "InitializeShareGroupState", 0, 0, 0, TouchBlocked, "between group coordinator and share coordinator"},
	{84, "ReadShareGroupState", 0, 0, 0, TouchBlocked, "between group coordinator and share coordinator"},
	{85, "WriteShareGroupState", 0, 1, 0, TouchBlocked, "between group coordinator and share coordinator"},
	{86, "DeleteShareGroupState", 0, 0, 0, TouchBlocked, "between group coordinator and share coordinator"},
	{87, "ReadShareGroupStateSummary", 0, 1, 0, TouchBlocked, "between group coordinator and share coordinator"},
	{88, "StreamsGroupHeartbeat", 0, 1, 0, 0, "endpoints in it are the applications' own: stay; task offsets are virtual already"},
	{89, "StreamsGroupDescribe", 0, 1, 0, 0, ""},
	{90, "DescribeShareGroupOffsets", 0, 1, 0, TouchOffsets, "answer: an error for mirror topics, share offsets are physical (M12)"},
	{91, "AlterShareGroupOffsets", 0, 0, 0, TouchHandled | TouchRefused, "refused on mirror topics: share offsets are physical (M12)"},
	{92, "DeleteShareGroupOffsets", 0, 0, 0, 0, ""},
	{93, "StreamsGroupTopologyDescriptionUpdate", 0, 0, 0, 0, "newer than Kafka 4.3; no offsets, no addresses"},
	{94, "UnregisterController", 0, 0, 0, 0, "newer than Kafka 4.3; no offsets, no addresses"},
}

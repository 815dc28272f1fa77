package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/internal/verify"
)

// The exit codes that docs/cli.md promises.
func TestVerify(t *testing.T) {
	var clusters [2]*kfake.Cluster
	for i, values := range [][]string{{"a", "b"}, {"a", "c"}} {
		c, err := kfake.NewCluster(kfake.ClusterID(fmt.Sprint("c", i)))
		require.NoError(t, err)
		t.Cleanup(c.Close)
		clusters[i] = c
		cl, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...))
		require.NoError(t, err)
		for _, topic := range []string{"same", "orders"} {
			_, err = kadm.NewClient(cl).CreateTopic(t.Context(), 1, 1, nil, topic)
			require.NoError(t, err)
			for j, v := range values {
				if topic == "same" {
					v = "x"
				}
				r := &kgo.Record{Topic: topic, Value: []byte(v)}
				r.Timestamp = r.Timestamp.AddDate(2000+j, 0, 0)
				require.NoError(t, cl.ProduceSync(t.Context(), r).FirstErr())
			}
		}
		cl.Close()
	}
	conf := filepath.Join(t.TempDir(), "lockstep.yaml")
	require.NoError(t, os.WriteFile(conf, fmt.Appendf(nil, `
listeners: [{address: "127.0.0.1:19092", broker_ports: "19100-19149"}]
destination: {bootstrap: ["127.0.0.1:1"]}
mirrors: [{name: dc1, source: {bootstrap: [%q]}, topics: {include: [".*"]}}]
`, clusters[0].ListenAddrs()[0]), 0o600))
	args := []string{"verify", "--config", conf, "--destination", clusters[1].ListenAddrs()[0], "--rate", "1MiB"}

	out, code := runCLI(t, append(args, "--topic", "same")...)
	require.Zero(t, code, out)
	require.Contains(t, out, "equal: 2 records of 1 partition compared")

	out, code = runCLI(t, args...)
	require.Equal(t, 1, code, out)
	require.Contains(t, out, `orders, partition 0, offset 1: value: byte 0 of 1 is 0x62 on the source, 0x63 on the destination`)
	require.Contains(t, out, `value   1 bytes: 63 ("c")`)

	out, code = runCLI(t, append(args, "--json", "--regex", "ord.*")...)
	require.Equal(t, 1, code, out)
	var r verify.Report
	require.NoError(t, json.NewDecoder(strings.NewReader(out)).Decode(&r))
	require.Equal(t, verify.KindValue, r.Partitions[0].Difference.Kind)

	for _, bad := range [][]string{{"--topic", "none"}, {"--mirror", "dc2"}, {"--regex", "("}, {"--rate", "fast"}, {"--parallel", "-1"}, {"--regex", "none"}} {
		out, code = runCLI(t, append(args, bad...)...)
		require.Equal(t, 2, code, out)
	}
	out, code = runCLI(t, "verify", "--config", conf, "--patience", "1s") // the listener: nobody is there
	require.Equal(t, 2, code, out)
}

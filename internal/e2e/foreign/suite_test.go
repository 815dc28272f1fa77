//go:build foreign

package foreign_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/internal/e2e"
	"github.com/lockstep-kafka/lockstep/internal/e2e/foreign"
	"github.com/lockstep-kafka/lockstep/internal/testkafka"
)

// franz-go's own tests pass through the proxy as they pass at the brokers: `make test-foreign`. FOREIGN_RUN is the
// expression of test names (all when empty), FOREIGN_RECORDS how many records their ETL tests send (their own default,
// 500000, takes very long on two cores), FOREIGN_TIMEOUT the time for each run. What fails, on either side, is run once
// more by itself: their ETL tests, six chains of consumers at a time, now and then stand still on two cores.
func TestFranzSuite(t *testing.T) {
	src := kafka.Source(t)
	dst := testkafka.Start(t, testkafka.Options{Name: "destination", Brokers: 3, Heap: "700m", Props: map[string]string{"auto.create.topics.enable": "true"}})
	timeout, err := time.ParseDuration(env("FOREIGN_TIMEOUT", "10m"))
	require.NoError(t, err)
	suite, err := foreign.FranzSuite(t.Context(), t.TempDir())
	require.NoError(t, err)
	l := e2e.Start(t, &binary, e2e.Setup{Source: src, Destination: dst, Include: []string{"mirrored-.*"}})
	logs := os.Getenv("LOCKSTEP_KEEP_LOGS")
	if logs == "" {
		logs = t.TempDir()
	}
	run := func(name, seeds string) foreign.Outcomes {
		log, err := os.Create(filepath.Join(logs, "franz-go-"+name+".log"))
		require.NoError(t, err)
		defer func() { _ = log.Close() }()
		began := time.Now()
		settings := []string{"KGO_TEST_RF=1", "KGO_TEST_RECORDS=" + env("FOREIGN_RECORDS", "20000")}
		out, err := suite.Run(t.Context(), seeds, env("FOREIGN_RUN", "."), timeout, log, settings...)
		require.NoError(t, err)
		if failed := out.Names("FAIL"); len(failed) > 0 {
			t.Logf("%s: once more, alone: %v", name, failed)
			again, err := suite.Run(t.Context(), seeds, "^("+strings.Join(failed, "|")+")$", timeout, log, settings...)
			require.NoError(t, err)
			maps.Copy(out, again)
		}
		t.Logf("%s: %v", name, time.Since(began).Round(time.Second))
		return out
	}
	direct := run("direct", dst.Bootstrap())
	through := run("lockstep", l.Bootstrap())
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "franz-go's tests\tpassed\tfailed\tskipped")
	for _, x := range []struct {
		name string
		o    foreign.Outcomes
	}{{"at the brokers", direct}, {"through Lockstep", through}} {
		_, _ = fmt.Fprintf(w, "%s\t%d\t%d\t%d\n", x.name, x.o.Count("PASS"), x.o.Count("FAIL"), x.o.Count("SKIP"))
	}
	require.NoError(t, w.Flush())
	require.NotZero(t, direct.Count("PASS"))
	require.Empty(t, through.Worse(direct), "tests that pass at the brokers alone")
}

func env(name, def string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return def
}

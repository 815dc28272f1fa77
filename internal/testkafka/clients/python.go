package clients

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"

	"github.com/lockstep-kafka/lockstep/internal/testkafka"
	"github.com/lockstep-kafka/lockstep/internal/testkafka/oracle"
)

//go:embed python/client.py
var pythonSource []byte

//go:embed python/requirements.txt
var pythonRequirements []byte

// python makes a virtual environment with the pinned packages, and puts the script beside it, once per machine.
func python(ctx context.Context) (interpreter, script string, err error) {
	venv, err := testkafka.Once(ctx, "python-venv", string(pythonRequirements), func(ctx context.Context, dir string) error {
		if err := os.WriteFile(filepath.Join(dir, "requirements.txt"), pythonRequirements, 0o644); err != nil {
			return err
		}
		if err := testkafka.Run(ctx, dir, "python3", "-m", "venv", "venv"); err != nil {
			return err
		}
		return testkafka.Run(ctx, dir, filepath.Join(dir, "venv", "bin", "pip"), "install", "-q", "-r", "requirements.txt")
	})
	if err != nil {
		return "", "", err
	}
	dir, err := testkafka.Once(ctx, versioned("python-client", string(pythonSource)), string(pythonSource), func(_ context.Context, dir string) error {
		return os.WriteFile(filepath.Join(dir, "client.py"), pythonSource, 0o644)
	})
	return filepath.Join(venv, "venv", "bin", "python"), filepath.Join(dir, "client.py"), err
}

// Python runs one verb of the librdkafka client: see python/client.py.
func Python(ctx context.Context, args ...string) (Result, error) {
	return pythonEach(ctx, Read{}.each, args...)
}

func pythonEach(ctx context.Context, each func(oracle.Rec) bool, args ...string) (Result, error) {
	interpreter, script, err := python(ctx)
	if err != nil {
		return Result{}, err
	}
	return runClient(ctx, each, interpreter, append([]string{script}, args...)...)
}

// PythonRead reads with librdkafka.
func PythonRead(ctx context.Context, r Read) (Result, error) {
	return pythonEach(ctx, r.each, r.args()...)
}

// PythonProduce writes n records with librdkafka.
func PythonProduce(ctx context.Context, bootstrap, topic string, partition int32, n int, more ...string) ([]Meta, error) {
	r, err := Python(ctx, append([]string{
		"produce", "bootstrap=" + bootstrap, "topic=" + topic, fmt.Sprintf("partition=%d", partition), fmt.Sprintf("n=%d", n),
	}, more...)...)
	return r.Meta, err
}

// Command lockstep is a Kafka proxy that mirrors a source cluster into the
// cluster behind it and shows clients the source's offsets and leader epochs.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := root().ExecuteContext(ctx)
	stop()
	var said *saidError
	switch {
	case err == nil:
	case errors.As(err, &said):
		os.Exit(said.code)
	default:
		fmt.Fprintln(os.Stderr, "lockstep:", err)
		os.Exit(1)
	}
}

// saidError ends the program with a code when all has been said already.
type saidError struct{ code int }

func (e *saidError) Error() string { return fmt.Sprintf("exit code %d", e.code) }

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:           "lockstep",
		Short:         "Mirror a Kafka cluster and read it through a proxy with the source's own offsets and leader epochs",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	cmd.AddCommand(serveCommand(), checkCommand(), demoCommand(), versionCommand())
	return cmd
}

// configFlag is --config of the verbs that need one.
func configFlag(cmd *cobra.Command, path *string) {
	cmd.Flags().StringVarP(path, "config", "c", "lockstep.yaml", "configuration file")
}

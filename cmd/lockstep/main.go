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
	// The second one ends the process at once, whatever still drains.
	context.AfterFunc(ctx, stop)
	err := root().ExecuteContext(ctx)
	stop()
	var said *saidError
	if err != nil && !errors.As(err, &said) {
		fmt.Fprintln(os.Stderr, "lockstep:", err)
	}
	os.Exit(exitCode(err))
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
	cmd.AddCommand(
		serveCommand(), checkCommand(), demoCommand(), versionCommand(),
		listCommand(), describeCommand(), statusCommand(), aclsCommand(), setCommand(), instancesCommand(), forgetCommand(),
		startCommand(), stopCommand(), pauseCommand(), resumeCommand(), recoverCommand(), deleteCommand(),
		divergedCommand(), verifyCommand(), referenceCommand(),
	)
	markRuns(cmd)
	return cmd
}

// runError is an error of a command that has run: all others are wrong usage.
type runError struct{ err error }

func (e *runError) Error() string { return e.err.Error() }
func (e *runError) Unwrap() error { return e.err }

func markRuns(cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		markRuns(c)
		if run := c.RunE; run != nil {
			c.RunE = func(cmd *cobra.Command, args []string) error {
				if err := run(cmd, args); err != nil {
					return &runError{err}
				}
				return nil
			}
		}
	}
}

// configFlag is --config of the verbs that need one.
func configFlag(cmd *cobra.Command, path *string) {
	cmd.Flags().StringVarP(path, "config", "c", "lockstep.yaml", "configuration file")
}

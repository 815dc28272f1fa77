package main

import (
	"fmt"
	"os"
	"os/signal"
	"runtime/pprof"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/lockstep-kafka/lockstep/internal/app"
	"github.com/lockstep-kafka/lockstep/internal/config"
)

func serveCommand() *cobra.Command {
	var path, profile string
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the proxy and the mirrors of a configuration file, until SIGTERM",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := config.Load(path)
			if err != nil {
				return err
			}
			if profile != "" {
				stop, err := startProfile(profile)
				if err != nil {
					return err
				}
				defer stop()
			}
			hup := make(chan os.Signal, 1)
			signal.Notify(hup, syscall.SIGHUP)
			defer signal.Stop(hup)
			return app.Run(cmd.Context(), c, app.Options{LogTo: os.Stderr, Reload: &app.Reload{Path: path, Now: hup}})
		},
	}
	configFlag(cmd, &path)
	cmd.Flags().StringVar(&profile, "cpuprofile", "", "write a CPU profile to this file")
	return cmd
}

func startProfile(path string) (stop func(), err error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("--cpuprofile: %w", err)
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("--cpuprofile: %w", err)
	}
	return func() {
		pprof.StopCPUProfile()
		_ = f.Close()
	}, nil
}

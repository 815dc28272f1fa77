package tlsconf

import (
	"context"
	"log/slog"
	"time"
)

// Reloader is a Client or a Server.
type Reloader interface {
	What() string
	Reload() (changed bool, err error)
}

// Watch reloads all of them until ctx ends.
func Watch(ctx context.Context, every time.Duration, log *slog.Logger, all ...Reloader) {
	if len(all) == 0 {
		return
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, r := range all {
			switch changed, err := r.Reload(); {
			case err != nil:
				log.Error("changed TLS files can't be loaded: new connections go on with the old ones", "of", r.What(), "err", err)
			case changed:
				log.Info("TLS files reloaded; open connections stay as they are", "of", r.What())
			}
		}
	}
}

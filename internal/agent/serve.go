package agent

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/mtls"
)

// healthBoard is what probes ask for.
type healthBoard struct {
	mu             sync.Mutex
	started, ready bool
	alive          time.Time
}

// stuck is after how long without a look at HAProxy the agent counts as dead.
// A reload, the longest thing it does, is bounded to less.
const stuck = 5 * time.Minute

func (h *healthBoard) setStarted() { h.mu.Lock(); h.started = true; h.mu.Unlock() }

func (h *healthBoard) setReady(ready bool) { h.mu.Lock(); h.ready = ready; h.mu.Unlock() }

func (h *healthBoard) beat() { h.mu.Lock(); h.alive = time.Now(); h.mu.Unlock() }

func (h *healthBoard) probe(good func(*healthBoard) bool, otherwise string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		h.mu.Lock()
		ok := good(h)
		h.mu.Unlock()
		if !ok {
			http.Error(w, otherwise, http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok\n"))
	}
}

// statusHandler is what the operator may ask.
func (a *Agent) statusHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /v1/status", a.status)
	mux.HandleFunc("GET "+dataplane.UsagePath, a.usage)
	return mux
}

// healthHandler is what the kubelet and Prometheus may ask, without proof of
// who they are: it tells nothing that is secret.
func (a *Agent) healthHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /startupz", a.health.probe(func(h *healthBoard) bool { return h.started },
		"no configuration has been written and checked yet"))
	mux.Handle("GET /readyz", a.health.probe(func(h *healthBoard) bool { return h.ready },
		"HAProxy does not serve"))
	mux.Handle("GET /livez", a.health.probe(func(h *healthBoard) bool { return time.Since(h.alive) < stuck },
		"the agent is stuck"))
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.Metrics.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	return mux
}

// Serve the status over mutual TLS with the certificate in agentTLS, and the
// probes and metrics in plain text, until the context ends.
func (a *Agent) Serve(ctx context.Context, status, health net.Listener, agentTLS string) error {
	a.health.beat()
	statusServer := newServer(a.statusHandler(), a.Log)
	statusServer.TLSConfig = mtls.ServerConfig(agentTLS)
	healthServer := newServer(a.healthHandler(), a.Log)
	failed := make(chan error, 2)
	go func() { failed <- statusServer.ServeTLS(status, "", "") }()
	go func() { failed <- healthServer.Serve(health) }()
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	_ = statusServer.Close()
	_ = healthServer.Close()
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

func newServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    8 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

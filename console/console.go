// Package console is the operator's HTTP port: health, metrics, and the few actions that must work before Kafka's port does.
//
// Goroutines: Start begins the HTTP server, Stop ends it and waits for requests that run.
package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/barnabas-mq/barnabas/raftmeta/state"
)

// Reason is one thing that keeps a node from being ready or healthy.
type Reason struct {
	Name   string `json:"name"`
	Detail string `json:"detail"`
}

// Node is what the console shows and asks; the node fills it in.
type Node interface {
	// Unready lists why this node does not serve clients yet; empty: it does.
	Unready() []Reason
	// Unhealthy lists what an operator should look at, whether it serves or not.
	Unhealthy() []Reason
	// Status is shown as JSON.
	Status() any
	// InitCluster founds a cluster on this node and returns its id.
	InitCluster(ctx context.Context) (clusterID string, err error)
	// RaiseLevel raises the cluster's feature level; level 0 means the highest that all live brokers serve. It returns
	// the level after that.
	RaiseLevel(ctx context.Context, level uint32) (uint32, error)
}

// Config is what a Console needs.
type Config struct {
	Listen  string // host:port; port 0 lets the system choose
	Node    Node
	Metrics prometheus.Gatherer
	View    func() *state.View          // the node's newest; nil: groups are not shown
	Routes  map[string]http.HandlerFunc // more routes, by pattern; nil: none
	Log     *slog.Logger
}

// Console is the HTTP port.
type Console struct {
	cfg Config
	ln  net.Listener
	srv *http.Server
	end chan struct{}
}

// New starts nothing.
func New(cfg Config) *Console {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Console{cfg: cfg, end: make(chan struct{})}
}

// Start binds the port and serves it.
func (c *Console) Start() error {
	ln, err := net.Listen("tcp", c.cfg.Listen)
	if err != nil {
		return fmt.Errorf("admin port: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { reply(w, http.StatusOK, map[string]bool{"alive": true}) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { verdict(w, "ready", c.cfg.Node.Unready()) })
	mux.HandleFunc("GET /healthz", c.healthz)
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) { reply(w, http.StatusOK, c.cfg.Node.Status()) })
	mux.HandleFunc("POST /v1/cluster/init", c.init)
	mux.HandleFunc("POST /v1/cluster/level", c.level)
	mux.HandleFunc("GET /v1/groups/{group}/rebalances", c.rebalances)
	mux.Handle("GET /metrics", promhttp.HandlerFor(c.cfg.Metrics, promhttp.HandlerOpts{}))
	for pattern, h := range c.cfg.Routes {
		mux.HandleFunc(pattern, h)
	}
	c.ln = ln
	c.srv = &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	go func() {
		defer close(c.end)
		if err := c.srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			c.cfg.Log.Error("the admin port has stopped", "err", err)
		}
	}()
	return nil
}

// Addr is the bound address, after Start.
func (c *Console) Addr() net.Addr { return c.ln.Addr() }

// Stop closes the port; requests that run get until ctx ends.
func (c *Console) Stop(ctx context.Context) {
	if c.srv == nil {
		return
	}
	if err := c.srv.Shutdown(ctx); err != nil {
		_ = c.srv.Close() // what still runs has had its time
	}
	<-c.end
}

func (c *Console) healthz(w http.ResponseWriter, r *http.Request) {
	reasons := append(c.cfg.Node.Unready(), c.cfg.Node.Unhealthy()...)
	if !r.URL.Query().Has("verbose") {
		code := http.StatusOK
		if len(reasons) > 0 {
			code = http.StatusServiceUnavailable
		}
		reply(w, code, map[string]bool{"healthy": len(reasons) == 0})
		return
	}
	verdict(w, "healthy", reasons)
}

func (c *Console) init(w http.ResponseWriter, r *http.Request) {
	clusterID, err := c.cfg.Node.InitCluster(r.Context())
	if err != nil {
		reply(w, http.StatusConflict, map[string]string{"error": err.Error()})
		return
	}
	reply(w, http.StatusOK, map[string]string{"clusterId": clusterID})
}

// level takes ?level=n; without it the highest that all live brokers serve.
func (c *Console) level(w http.ResponseWriter, r *http.Request) {
	level := uint64(0)
	if text := r.URL.Query().Get("level"); text != "" {
		var err error
		if level, err = strconv.ParseUint(text, 10, 32); err != nil || level == 0 {
			reply(w, http.StatusBadRequest, map[string]string{"error": "level must be a number above 0"})
			return
		}
	}
	now, err := c.cfg.Node.RaiseLevel(r.Context(), uint32(level))
	if err != nil {
		reply(w, http.StatusConflict, map[string]string{"error": err.Error()})
		return
	}
	reply(w, http.StatusOK, map[string]uint32{"level": now})
}

func verdict(w http.ResponseWriter, word string, reasons []Reason) {
	code := http.StatusOK
	if len(reasons) > 0 {
		code = http.StatusServiceUnavailable
	} else {
		reasons = []Reason{}
	}
	reply(w, code, map[string]any{word: len(reasons) == 0, "reasons": reasons})
}

func reply(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the client may be gone; nothing else can be told
}

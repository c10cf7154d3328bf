// Command qtls-echo is a backend that says what reached it: over HTTP, HTTPS and plain TCP. The quickstart and the tests
// put a gateway in front of it.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// options are the command line: an empty address leaves its server out.
type options struct{ http, https, tcp, cert, key string }

func parse(args []string) (options, error) {
	var o options
	flags := flag.NewFlagSet("qtls-echo", flag.ContinueOnError)
	flags.StringVar(&o.http, "http", "", "address of the HTTP/1.1 server, such as :8080")
	flags.StringVar(&o.https, "https", "", "address of the HTTPS server; needs -cert and -key")
	flags.StringVar(&o.tcp, "tcp", "", "address of the TCP server, which sends back each line")
	flags.StringVar(&o.cert, "cert", "", "PEM file with the certificate chain of the HTTPS server")
	flags.StringVar(&o.key, "key", "", "PEM file with its private key")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	switch {
	case flags.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case o.http == "" && o.https == "" && o.tcp == "":
		return o, errors.New("nothing to serve: give -http, -https or -tcp an address")
	case o.https != "" && (o.cert == "" || o.key == ""):
		return o, errors.New("-https needs -cert and -key")
	case o.https == "" && (o.cert != "" || o.key != ""):
		return o, errors.New("-cert and -key are for -https, which has no address")
	}
	return o, nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err == nil {
		err = serve(ctx, o, podName(), log.Printf)
	}
	if err != nil {
		log.Fatal("qtls-echo: ", err)
	}
}

// podName is POD_NAME (set it by the downward API) or the host name, which in a pod is the pod's name.
func podName() string {
	if name := os.Getenv("POD_NAME"); name != "" {
		return name
	}
	name, _ := os.Hostname()
	return name
}

// drainTime bounds how long open requests may take after the end was asked for.
const drainTime = 5 * time.Second

// serve runs the servers until the context ends or one of them fails. Each address is logged once it accepts connections.
func serve(ctx context.Context, o options, pod string, logf func(string, ...any)) error {
	var listeners []net.Listener
	var servers []func(net.Listener) error
	web := &http.Server{
		Handler:           handler(pod),
		ReadHeaderTimeout: 10 * time.Second,
		// HTTP/2 would hide the connection that a gateway opened from the tests that count connections.
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){},
	}
	listen := func(kind, address string, server func(net.Listener) error) error {
		if address == "" {
			return nil
		}
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
		if err != nil {
			return fmt.Errorf("-%s: %w", kind, err)
		}
		logf("%s on %s", kind, l.Addr())
		listeners, servers = append(listeners, l), append(servers, server)
		return nil
	}
	err := errors.Join(
		listen("http", o.http, web.Serve),
		listen("https", o.https, func(l net.Listener) error { return web.ServeTLS(l, o.cert, o.key) }),
		listen("tcp", o.tcp, serveLines),
	)
	if err != nil {
		closeAll(listeners)
		return err
	}
	failed := make(chan error, len(servers))
	for i, server := range servers {
		go func() { failed <- server(listeners[i]) }()
	}
	select {
	case err = <-failed:
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
	defer cancel()
	err = errors.Join(err, web.Shutdown(drain))
	closeAll(listeners)
	return err
}

func closeAll(listeners []net.Listener) {
	for _, l := range listeners {
		_ = l.Close() // already closed by Shutdown, or of no further use
	}
}

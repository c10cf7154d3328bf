// Command probe is a TLS client for tests: it connects to a gateway, says in JSON what was negotiated, which certificate
// was served and who answered, and can send a ClientHello in unusual pieces. It verifies chain and name always. It has
// no dependencies, so that it can be built by several releases of Go, whose TLS clients differ.
//
//	probe -ca ca.pem -sni web.example -http / 10.96.0.7:443          one connection
//	probe -ca ca.pem -sni web.example -http / -n 10000 -c 8 ADDR      many, each a new one, none tried again
//	probe -ca ca.pem -sni web.example -http / -n 1000 -c 8 -resume A B   many, of 8 clients that come back, to A or B
//	probe -ca ca.pem -sni web.example -watch 10ms ADDR...             a line whenever the certificate changes
//	probe -observe 127.0.0.1:4433                                     not a client: says what the next client's hello offers
//	probe -relay 127.0.0.1:4433 -segment 1 ADDR                       not a client: passes another's connection on in pieces
//	probe -relay :4433 -delay 10ms ADDR                               not a client: passes connections on, and answers later
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// options are the command line.
type options struct {
	addresses []string
	config    *tls.Config
	wire      wire
	timeout   time.Duration

	// request: HTTP when path is not empty, else a line when echo is not empty.
	path, host, echo string
	header           http.Header

	// load, when total or untilStdin is set.
	total, concurrency int
	rate               float64
	untilStdin         bool
	resume             bool

	watch time.Duration

	observe, relay string
	delay          time.Duration // of the relay
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ok, err := run(ctx, os.Args[1:], os.Stdin, os.Stdout)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(2)
	}
	if !ok {
		os.Exit(1)
	}
}

// run reports whether everything that was tried succeeded; an error is a wrong command line.
func run(ctx context.Context, args []string, in io.Reader, out io.Writer) (bool, error) {
	o, err := parse(args)
	if err != nil {
		return false, err
	}
	show := json.NewEncoder(out)
	show.SetEscapeHTML(false)
	switch {
	case o.observe != "":
		hello, err := observe(ctx, o.observe, o.timeout)
		if err != nil {
			return false, err
		}
		return true, show.Encode(hello)
	case o.relay != "":
		return true, relay(ctx, o)
	case o.watch > 0:
		watch(ctx, o, show)
		return true, nil
	case o.total > 0 || o.untilStdin:
		summary := load(ctx, o, in)
		return summary.Failed == 0, show.Encode(summary)
	}
	result := attempt(ctx, o, o.addresses[0])
	return result.OK, show.Encode(result)
}

func parse(args []string) (options, error) {
	o := options{header: http.Header{}, config: &tls.Config{}}
	var ca, cert, key, groups, versions, alpn string
	flags := flag.NewFlagSet("probe", flag.ContinueOnError)
	flags.StringVar(&ca, "ca", "", "PEM file with the CA certificates to trust (needed)")
	flags.StringVar(&o.config.ServerName, "sni", "", "server name: sent, and looked for in the certificate (needed)")
	flags.StringVar(&cert, "cert", "", "PEM file with a client certificate")
	flags.StringVar(&key, "key", "", "PEM file with its private key")
	flags.StringVar(&groups, "groups", "", "groups to offer, comma separated, such as X25519MLKEM768,X25519 (default: Go's)")
	flags.StringVar(&versions, "versions", "", "version or range to offer, such as 1.3 or 1.2-1.3 (default: Go's)")
	flags.StringVar(&alpn, "alpn", "", "protocols to offer, comma separated")
	flags.StringVar(&o.path, "http", "", "send GET for this path")
	flags.StringVar(&o.host, "host", "", "authority of the request (default: the server name)")
	flags.Func("header", "header of the request, as Name: value; may be given several times", func(s string) error {
		name, value, found := strings.Cut(s, ":")
		if !found {
			return errors.New("want Name: value")
		}
		o.header.Add(name, strings.TrimSpace(value))
		return nil
	})
	flags.StringVar(&o.echo, "echo", "", "send this line and expect it back")
	flags.DurationVar(&o.timeout, "timeout", 10*time.Second, "greatest time for one connection")
	flags.IntVar(&o.wire.fragment, "fragment", 0, "put at most this many bytes of the ClientHello into one TLS record")
	flags.IntVar(&o.wire.segment, "segment", 0, "put at most this many bytes into one TCP segment")
	flags.DurationVar(&o.wire.pause, "pause", 200*time.Microsecond, "wait between two segments")
	flags.IntVar(&o.wire.stopAfter, "stop-after", 0, "send this many bytes of the ClientHello and no more")
	flags.BoolVar(&o.wire.hangUp, "hang-up", false, "after -stop-after close the sending side, rather than wait for the server to give up")
	flags.IntVar(&o.total, "n", 0, "make this many connections and print a summary")
	flags.BoolVar(&o.untilStdin, "until-stdin-closes", false, "make connections until standard input ends, and at least -n")
	flags.IntVar(&o.concurrency, "c", 1, "connections at a time")
	flags.Float64Var(&o.rate, "rate", 0, "greatest number of connections a second (0: no bound)")
	flags.BoolVar(&o.resume, "resume", false, "let each of the -c clients come back with the session ticket of its last connection, to one of the addresses, whichever")
	flags.DurationVar(&o.watch, "watch", 0, "connect to each address at this interval and print a line whenever the certificate is another")
	flags.StringVar(&o.observe, "observe", "", "accept one connection at this address and print what its ClientHello offers")
	flags.StringVar(&o.relay, "relay", "", "accept one connection at this address and pass it on, in the pieces that the other options say")
	flags.DurationVar(&o.delay, "delay", 0, "with -relay: accept any number of connections, and pass on so much later what the server says")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	o.addresses = flags.Args()
	switch {
	case o.observe != "":
		return o, nil
	case len(o.addresses) == 0:
		return o, errors.New("no address: give host:port")
	case o.relay != "":
		return o, nil
	case len(o.addresses) > 1 && o.watch == 0 && !o.resume:
		return o, fmt.Errorf("%d addresses: only -watch and -resume take several", len(o.addresses))
	case o.resume && o.total == 0 && !o.untilStdin:
		return o, errors.New("-resume needs -n or -until-stdin-closes")
	case ca == "":
		return o, errors.New("-ca is needed: the chain is always verified")
	case o.config.ServerName == "":
		return o, errors.New("-sni is needed: the name is always verified")
	case (cert == "") != (key == ""):
		return o, errors.New("-cert and -key go together")
	case o.path != "" && o.echo != "":
		return o, errors.New("-http and -echo exclude each other")
	case o.concurrency < 1:
		return o, fmt.Errorf("-c %d: at least 1", o.concurrency)
	case o.wire.hangUp && o.wire.stopAfter == 0:
		return o, errors.New("-hang-up needs -stop-after")
	}
	if o.host == "" {
		o.host = o.config.ServerName
	}
	return o, configure(o.config, ca, cert, key, groups, versions, alpn)
}

// configure fills in what the flags say of TLS.
func configure(c *tls.Config, ca, cert, key, groups, versions, alpn string) error {
	pem, err := os.ReadFile(ca)
	if err != nil {
		return err
	}
	c.RootCAs = x509.NewCertPool()
	if !c.RootCAs.AppendCertsFromPEM(pem) {
		return fmt.Errorf("%s: no certificate in it", ca)
	}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return err
		}
		// A client sends its certificate even when the server did not name its CA.
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	if groups != "" {
		for name := range strings.SplitSeq(groups, ",") {
			id, known := groupIDs[name]
			if !known {
				return fmt.Errorf("-groups: %q is not a known group", name)
			}
			c.CurvePreferences = append(c.CurvePreferences, id)
		}
	}
	if versions != "" {
		least, most, isRange := strings.Cut(versions, "-")
		if !isRange {
			most = least
		}
		ids := map[string]uint16{"1.0": tls.VersionTLS10, "1.1": tls.VersionTLS11, "1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13}
		c.MinVersion, c.MaxVersion = ids[least], ids[most]
		if c.MinVersion == 0 || c.MaxVersion == 0 {
			return fmt.Errorf("-versions: %q is not a version or range of TLS", versions)
		}
	}
	if alpn != "" {
		c.NextProtos = strings.Split(alpn, ",")
	}
	return nil
}

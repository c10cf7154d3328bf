package xqtls

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"qtls.dev/qtls/k6/options"
)

// SessionCA is the environment variable with the authorities of a session, in PEM, where no file has them.
const SessionCA = "QTLS_SESSION_CA"

// sessionOptions are what the command line says.
type sessionOptions struct {
	client   options.Options
	request  *request      // nil: nothing but a handshake
	interval time.Duration // from the beginning of a sample to that of the next one
	every    time.Duration // from one summary to the next
	duration time.Duration // 0: until it is told to end
	file     string
	metrics  string
}

// listFlag is a list with commas.
type listFlag struct{ names *[]any }

func (l listFlag) String() string { return "" }
func (l listFlag) Set(text string) error {
	for name := range strings.SplitSeq(text, ",") {
		*l.names = append(*l.names, name)
	}
	return nil
}

// parseSession reads the command line of `qtls-k6 session`.
func parseSession(args []string, getenv func(string) string, help io.Writer) (sessionOptions, error) {
	var s sessionOptions
	flags := flag.NewFlagSet("qtls-k6 session", flag.ContinueOnError)
	flags.SetOutput(help)
	object := map[string]any{}
	text := func(name, option, usage string) {
		flags.Func(name, usage, func(value string) error { object[option] = value; return nil })
	}
	text("host", "host", "name or address of the gateway (required)")
	port := flags.Int64("port", 443, "its port")
	text("sni", "sni", "name in the ClientHello, which the certificate must carry (default: the host, if that is a name)")
	text("min-version", "minVersion", `"1.2" or "1.3" (default 1.3)`)
	text("max-version", "maxVersion", `"1.2" or "1.3" (default 1.3)`)
	text("provider", "provider", "path of an OpenSSL provider's module")
	text("timeout", "timeout", `of a sample, as in "10s"`)
	var groups, algorithms []any
	flags.Var(listFlag{&groups}, "groups", "groups to offer, with commas between them (default: OpenSSL's)")
	flags.Var(listFlag{&algorithms}, "signature-algorithms", "signature algorithms to offer, with commas between them (default: OpenSSL's)")
	resumption := flags.Bool("resumption", false, "resume the session of the sample before")
	files := map[string]string{}
	file := func(name, usage string) {
		flags.Func(name, usage, func(path string) error { files[name] = path; return nil })
	}
	file("ca", "file with the authorities, in PEM (default: what the environment variable "+SessionCA+" holds)")
	file("certificate", "file with the client's certificate and its chain, in PEM")
	file("key", "file with the certificate's private key, in PEM")
	path := flags.String("path", "/", `what to ask for by HTTP; "" makes handshakes only`)
	status := flags.Int("status", 0, "HTTP status that is expected (default: any 2xx)")
	flags.DurationVar(&s.interval, "interval", time.Second, "time from one sample to the next")
	flags.DurationVar(&s.every, "every", time.Minute, "time from one summary to the next")
	flags.DurationVar(&s.duration, "duration", 0, "how long; 0 goes on until SIGTERM or SIGINT")
	flags.StringVar(&s.file, "file", "", "file to which each summary is added as a line of JSON")
	flags.StringVar(&s.metrics, "metrics", "", `address where Prometheus finds metrics, as in ":9090"`)
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	if flags.NArg() > 0 {
		return s, fmt.Errorf("%q: there are flags only, such as --host", flags.Arg(0))
	}
	if err := readFiles(files, getenv, object); err != nil {
		return s, err
	}
	object["port"] = *port
	if len(groups) > 0 {
		object["groups"] = groups
	}
	if len(algorithms) > 0 {
		object["signatureAlgorithms"] = algorithms
	}
	if *resumption {
		object["resumption"] = true
	}
	var err error
	if s.client, err = options.Parse(object); err != nil {
		return s, err
	}
	switch {
	case *path != "":
		s.request = &request{path: *path, status: *status}
	case *status != 0:
		return s, fmt.Errorf("--status %d: with an empty --path there is no response: leave one of them out", *status)
	}
	return s, s.check()
}

// readFiles gives the client's options what files have, and the authorities of the environment where no file has any.
func readFiles(files map[string]string, getenv func(string) string, object map[string]any) error {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		content, err := os.ReadFile(files[name])
		if err != nil {
			return fmt.Errorf("--%s: %w", name, err)
		}
		object[name] = string(content)
	}
	if object["ca"] != nil {
		return nil
	}
	pem := getenv(SessionCA)
	if pem == "" {
		return fmt.Errorf("there are no authorities, and the certificate is always verified: name a file with --ca, or set %s", SessionCA)
	}
	object["ca"] = pem
	return nil
}

// check says what is wrong beside the client's options.
func (s sessionOptions) check() error {
	var errs []error
	if s.request != nil {
		errs = append(errs, s.request.validate())
	}
	for name, d := range map[string]time.Duration{"interval": s.interval, "every": s.every} {
		if d < time.Millisecond {
			errs = append(errs, fmt.Errorf("--%s %v: give 1ms or more", name, d))
		}
	}
	if s.duration < 0 {
		errs = append(errs, fmt.Errorf("--duration %v: give 0 or more", s.duration))
	}
	return errors.Join(errs...)
}

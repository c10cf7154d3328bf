// Package options reads what a script gives a client of k6/x/qtls.
package options

import (
	"fmt"
	"maps"
	"math"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Options are a client's.
type Options struct {
	// Host is a name or an address, and Port its port.
	Host string
	Port int
	// SNI is the name in the ClientHello, which the certificate must carry. Empty for a host that is an address: then the
	// certificate must carry that.
	SNI string
	// Groups and SignatureAlgorithms are offered in this order, by OpenSSL's names; OpenSSL's own where empty.
	Groups              []string
	SignatureAlgorithms []string
	// MinVersion and MaxVersion are 1.2 or 1.3.
	MinVersion, MaxVersion string
	// Resumption uses the session of the client's last connection.
	Resumption bool
	// Tickets is how many a handshake of TLS 1.3 by itself waits for. With 0 it waits for the server to close instead.
	Tickets int
	// CA, Certificate and Key are PEM. Without CA nothing is verified, which InsecureSkipVerify has to say.
	CA, Certificate, Key string
	InsecureSkipVerify   bool
	// Provider is the name of an OpenSSL provider, which lies where OpenSSL looks for its own, or its path; Properties is a
	// query such as "?provider=oqsprovider".
	Provider, Properties string
	// Timeout bounds a call as a whole.
	Timeout time.Duration
}

// What may be given.
const (
	longestName    = 255
	longestPEM     = 1 << 20
	mostNames      = 64
	mostTickets    = 16
	longestTimeout = time.Minute // as long as a histogram counts
)

// field reads one option into Options; what it returns says what the option takes.
type field struct {
	takes string
	set   func(o *Options, value any) bool
}

// fields is the table of all options, under the names that scripts use.
var fields = map[string]field{
	"host":                text("a name or an address", longestName, plain, func(o *Options) *string { return &o.Host }),
	"port":                integer("a number from 1 to 65535", 1, math.MaxUint16, func(o *Options) *int { return &o.Port }),
	"sni":                 text("a host name", longestName, plain, func(o *Options) *string { return &o.SNI }),
	"groups":              names(`an array of groups, as in ["X25519MLKEM768", "X25519"]`, func(o *Options) *[]string { return &o.Groups }),
	"signatureAlgorithms": names(`an array of signature algorithms, as in ["mldsa65", "ecdsa_secp256r1_sha256"]`, func(o *Options) *[]string { return &o.SignatureAlgorithms }),
	"minVersion":          text(`"1.2" or "1.3"`, longestName, version, func(o *Options) *string { return &o.MinVersion }),
	"maxVersion":          text(`"1.2" or "1.3"`, longestName, version, func(o *Options) *string { return &o.MaxVersion }),
	"resumption":          boolean(func(o *Options) *bool { return &o.Resumption }),
	"tickets":             integer(fmt.Sprintf("a number from 0 to %d", mostTickets), 0, mostTickets, func(o *Options) *int { return &o.Tickets }),
	"ca":                  text("certificates in PEM, as open() of a script reads them", longestPEM, pem, func(o *Options) *string { return &o.CA }),
	"certificate":         text("a certificate and its chain in PEM", longestPEM, pem, func(o *Options) *string { return &o.Certificate }),
	"key":                 text("a private key in PEM", longestPEM, pem, func(o *Options) *string { return &o.Key }),
	"insecureSkipVerify":  boolean(func(o *Options) *bool { return &o.InsecureSkipVerify }),
	"provider":            text("the name of a provider, or the absolute path of its module, NAME.so", longestName, module, func(o *Options) *string { return &o.Provider }),
	"properties":          text(`a property query, as in "?provider=oqsprovider"`, longestName, plain, func(o *Options) *string { return &o.Properties }),
	"timeout": {
		takes: `a duration from "1ms" to "1m", as in "10s"`,
		set: func(o *Options, value any) bool {
			s, ok := value.(string)
			d, err := time.ParseDuration(s)
			o.Timeout = d
			return ok && err == nil && d >= time.Millisecond && d <= longestTimeout
		},
	},
}

// Parse reads the object of a script. What it does not know is an error, for a measurement without an option that was
// meant is a wrong measurement.
func Parse(object map[string]any) (Options, error) {
	o := Options{Port: 443, MinVersion: "1.3", MaxVersion: "1.3", Tickets: 1, Timeout: 10 * time.Second}
	for _, name := range slices.Sorted(maps.Keys(object)) {
		f, known := fields[name]
		if !known {
			return Options{}, fmt.Errorf("option %q is unknown: there are %s", cut(name), strings.Join(slices.Sorted(maps.Keys(fields)), ", "))
		}
		if value := object[name]; !f.set(&o, value) {
			return Options{}, fmt.Errorf("option %s: %s: give %s, or leave it out", name, show(value, name), f.takes)
		}
	}
	return o, o.check()
}

// check looks at options together, and fills in what follows from others.
func (o *Options) check() error {
	_, err := netip.ParseAddr(o.Host)
	address := err == nil
	switch {
	case o.Host == "":
		return fmt.Errorf("option host is missing: give %s", fields["host"].takes)
	case o.MinVersion > o.MaxVersion:
		return fmt.Errorf("option minVersion: %s is above maxVersion, %s: raise that, or lower this", o.MinVersion, o.MaxVersion)
	case o.CA == "" && !o.InsecureSkipVerify:
		return fmt.Errorf("option ca is missing: give the authority of the server's certificate, or insecureSkipVerify: true to verify nothing")
	case o.CA != "" && o.InsecureSkipVerify:
		return fmt.Errorf("option insecureSkipVerify: with ca it would verify nothing: leave one of them out")
	case o.Certificate == "" && o.Key != "":
		return fmt.Errorf("option certificate is missing: the key is of no use without it")
	case o.Key == "" && o.Certificate != "":
		return fmt.Errorf("option key is missing: the certificate is of no use without it")
	case o.Resumption && o.Tickets == 0 && o.MaxVersion == "1.3":
		return fmt.Errorf("option tickets: with 0 of them there is nothing to resume in TLS 1.3: give 1 or more, or resumption: false")
	}
	if o.SNI == "" && !address {
		o.SNI = o.Host
	}
	return nil
}

func text(takes string, longest int, valid func(string) bool, at func(*Options) *string) field {
	return field{takes, func(o *Options, value any) bool {
		s, ok := value.(string)
		*at(o) = s
		return ok && s != "" && len(s) <= longest && valid(s)
	}}
}

// names are those that OpenSSL takes in a list, which it separates by colons.
func names(takes string, at func(*Options) *[]string) field {
	return field{takes, func(o *Options, value any) bool {
		list, ok := value.([]any)
		for _, v := range list {
			s, isText := v.(string)
			ok = ok && isText && s != "" && len(s) <= longestName && plain(s) && !strings.Contains(s, ":")
			*at(o) = append(*at(o), s)
		}
		return ok && len(list) > 0 && len(list) <= mostNames
	}}
}

// integer takes a number without a fraction, whichever type the script's engine has for it.
func integer(takes string, least, most int64, at func(*Options) *int) field {
	return field{takes, func(o *Options, value any) bool {
		var n int64
		switch v := value.(type) {
		case int64:
			n = v
		case float64:
			if v != math.Trunc(v) || math.Abs(v) > math.MaxInt32 {
				return false
			}
			n = int64(v)
		default:
			return false
		}
		if n < least || n > most {
			return false
		}
		*at(o) = int(n)
		return true
	}}
}

func boolean(at func(*Options) *bool) field {
	return field{"true or false", func(o *Options, value any) bool {
		b, ok := value.(bool)
		*at(o) = b
		return ok
	}}
}

// plain has no spaces and no characters that end a string in C.
func plain(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f })
}

func version(s string) bool { return s == "1.2" || s == "1.3" }

func pem(s string) bool {
	return strings.Contains(s, "-----BEGIN ") && !strings.Contains(s, "\x00")
}

func module(s string) bool {
	if strings.Contains(s, "/") {
		return plain(s) && filepath.IsAbs(s) && filepath.Ext(s) == ".so" && filepath.Base(s) != ".so"
	}
	return plain(s) && filepath.Ext(s) != ".so"
}

// show never shows a key.
func show(value any, name string) string {
	switch v := value.(type) {
	case nil:
		return "there is no value"
	case string:
		switch {
		case v == "":
			return "it is empty"
		case name == "key":
			return fmt.Sprintf("%d characters are no private key", len(v))
		}
		return fmt.Sprintf("%q", cut(v))
	case []any:
		if len(v) == 0 {
			return "it is empty"
		}
	}
	return cut(fmt.Sprint(value))
}

func cut(s string) string {
	if len(s) > 64 {
		return s[:64] + "…"
	}
	return s
}

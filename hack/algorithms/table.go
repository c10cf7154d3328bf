package main

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// A row of the table: an algorithm under the name that TLS and OpenSSL know it
// by.
type row struct {
	Name string
	// Aliases are other names of it. OpenSSL's own groups have the one first
	// that OpenSSL reports and configures.
	Aliases []string
	// Kind says what it is used for:
	//   kem        a key exchange group that encapsulates
	//   group      a classical key exchange group
	//   signature  an algorithm of keys, with one signature scheme of its own
	//   scheme     a signature scheme of the keys of its family
	//   key        an algorithm of keys, with the schemes of its family
	Kind   string
	Family string
	// Level of security, 1 to 5, as NIST counts; 0 is that of a classical
	// algorithm, which withstands no quantum computer.
	Level int
	// Library that has it: openssl itself, or one of the provider's.
	Library string
	// Primitive is what it is made of, besides the classical half (Hybrid), if
	// there is one.
	Primitive, Hybrid string
	CodePoint         uint16
	OID               string
	// Status: standard, experimental or unaudited.
	Status string
	// Key is the name of the key's algorithm, where it is not Name.
	Key string
	// Sizes in bytes, 0 where it has no such thing. What varies has its
	// greatest, but for a certificate, which was measured.
	PublicKey, SecretKey, Ciphertext, SharedSecret, Signature, Certificate int
}

func (r row) postQuantum() bool { return r.Level > 0 }
func (r row) provider() bool    { return r.Library != "openssl" }
func (r row) exchange() bool    { return r.Kind == "kem" || r.Kind == "group" }
func (r row) hasKey() bool      { return r.Kind == "signature" || r.Kind == "key" }
func (r row) hasScheme() bool   { return (r.Kind == "signature" || r.Kind == "scheme") && r.fitsTLS() }

// fitsTLS says whether peers accept a certificate of it: OpenSSL's take chains
// of 100 KiB (SSL_CTX_set_max_cert_list(3)). The provider counts likewise.
func (r row) fitsTLS() bool { return r.PublicKey+r.Signature < 100<<10 }

// keyName is what the API calls keys of it.
func (r row) keyName() string {
	if r.Key != "" {
		return r.Key
	}
	return r.Name
}

// openSSL is the name that OpenSSL reports and configures.
func (r row) openSSL() string {
	if !r.provider() && len(r.Aliases) > 0 {
		return r.Aliases[0]
	}
	return r.Name
}

// columns that a row is made of; `first` is for the provider alone
// (crypto/provider/build.rs).
var columns = []string{"name", "aliases", "kind", "family", "level", "library", "primitive", "hybrid", "first", "code_point", "oid", "status", "key",
	"public_key", "secret_key", "ciphertext", "shared_secret", "signature", "certificate"}

// parse reads the table.
func parse(in io.Reader) ([]row, error) {
	lines, err := csv.NewReader(in).ReadAll()
	if err != nil {
		return nil, err
	}
	if len(lines) == 0 || !slices.Equal(lines[0], columns) {
		return nil, fmt.Errorf("line 1: the columns are not %s", strings.Join(columns, ","))
	}
	var rows []row
	seen := map[string]bool{}
	for i, line := range lines[1:] {
		r, err := parseRow(line)
		if err == nil && seen[r.Name] {
			err = errors.New("it is there already")
		}
		if err != nil {
			return nil, fmt.Errorf("line %d, algorithm %q: %w", i+2, line[0], err)
		}
		seen[r.Name] = true
		rows = append(rows, r)
	}
	return rows, nil
}

func parseRow(fields []string) (row, error) {
	cell := map[string]string{}
	for i, c := range columns {
		cell[c] = fields[i]
	}
	r := row{Name: cell["name"], Aliases: strings.Fields(cell["aliases"]), Kind: cell["kind"], Family: cell["family"], Library: cell["library"],
		Primitive: cell["primitive"], Hybrid: cell["hybrid"], OID: cell["oid"], Status: cell["status"], Key: cell["key"]}
	var problems []error
	for column, known := range map[string][]string{
		"kind":    {"kem", "group", "signature", "scheme", "key"},
		"library": {"openssl", "liboqs", "kpqc"},
		"status":  {"standard", "experimental", "unaudited"},
	} {
		if !slices.Contains(known, cell[column]) {
			problems = append(problems, fmt.Errorf("%s %q is none of %s", column, cell[column], strings.Join(known, ", ")))
		}
	}
	number := func(column string, bits int) int {
		if cell[column] == "" {
			return 0
		}
		n, err := strconv.ParseUint(cell[column], 0, bits)
		if err != nil || n == 0 {
			problems = append(problems, fmt.Errorf("%s %q is no number from 1 to %d; leave it empty where there is none", column, cell[column], uint64(1)<<bits-1))
		}
		return int(n)
	}
	r.Level = number("level", 3)
	r.CodePoint = uint16(number("code_point", 16))
	r.PublicKey, r.SecretKey = number("public_key", 31), number("secret_key", 31)
	r.Ciphertext, r.SharedSecret = number("ciphertext", 31), number("shared_secret", 31)
	r.Signature, r.Certificate = number("signature", 31), number("certificate", 31)

	needs := map[string]bool{"name": true, "family": true, "code_point": r.Kind != "key",
		"public_key": r.Kind != "scheme", "secret_key": r.Kind != "scheme", "ciphertext": r.exchange(), "shared_secret": r.exchange(),
		"signature": r.hasKey(), "certificate": r.hasKey(), "oid": r.hasKey(), "level": r.Kind == "kem" || r.provider()}
	for _, column := range columns {
		if needs[column] && cell[column] == "" {
			problems = append(problems, fmt.Errorf("%s is empty; a %s of library %s has one", column, r.Kind, r.Library))
		}
	}
	return r, errors.Join(problems...)
}

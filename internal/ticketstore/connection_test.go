package ticketstore

import (
	"encoding/json"
	"strings"
	"testing"
)

func members(addresses ...string) Connection {
	return Connection{Mode: Members, Addresses: addresses, Prefix: "qtls:"}
}

func TestWrongConnectionsAreRefusedWithTheFieldAndWhatItTakes(t *testing.T) {
	many := make([]string, 17)
	for i := range many {
		many[i] = "a:1"
	}
	with := func(change func(*Connection)) Connection {
		c := members("redis:6379")
		change(&c)
		return c
	}
	for name, tc := range map[string]struct {
		connection Connection
		want       string
	}{
		"no mode":              {with(func(c *Connection) { c.Mode = "" }), `mode is "", want Members, Sentinel or Cluster`},
		"no address":           {members(), "addresses has 0 entries, want 1 to 16"},
		"too many":             {members(many...), "addresses has 17 entries"},
		"no port":              {members("redis:6379", "redis"), `addresses[1] is "redis", want host:port`},
		"no host":              {members(":6379"), `addresses[0] is ":6379", want host:port`},
		"a port by its name":   {members("redis:redis"), "is not a number from 1 to 65535"},
		"port 0":               {members("redis:0"), "is not a number from 1 to 65535"},
		"port 65536":           {members("redis:65536"), "is not a number from 1 to 65535"},
		"a URL":                {members("rediss://redis:6379"), "addresses[0] is a URL, or has credentials in it: want host:port alone"},
		"an address with both": {members("user:hunter2@redis:6379"), "addresses[0] is a URL, or has credentials in it"},
		"no master":            {with(func(c *Connection) { c.Mode = Sentinel }), "master is empty"},
		"a master of members":  {with(func(c *Connection) { c.Master = "m" }), "master and the sentinels' credentials are for mode Sentinel, not Members"},
		"a user alone":         {with(func(c *Connection) { c.Username = "u" }), `password is empty, but username is "u"`},
		"a sentinel user alone": {with(func(c *Connection) { c.Mode, c.Master, c.SentinelUsername = Sentinel, "m", "u" }),
			`sentinelPassword is empty, but sentinelUsername is "u"`},
		"no certificate":         {with(func(c *Connection) { c.CA = []byte("x") }), "ca holds no certificate in PEM"},
		"no prefix":              {with(func(c *Connection) { c.Prefix = "" }), `prefix is "", want 1 to 128 letters, digits and -._:/`},
		"a pattern for a prefix": {with(func(c *Connection) { c.Prefix = "qtls*" }), `prefix is "qtls*"`},
	} {
		t.Run(name, func(t *testing.T) {
			err := tc.connection.Validate()
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("error %v, want %q in it", err, tc.want)
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("error %v shows a password", err)
			}
			if _, err := Open(tc.connection); err == nil {
				t.Error("Open takes it")
			}
		})
	}
	for name, c := range map[string]Connection{
		"members":            members("redis-0:6379", "redis-1:6379"),
		"IPv6":               members("[::1]:6379"),
		"sentinels":          with(func(c *Connection) { c.Mode, c.Master = Sentinel, "main" }),
		"cluster":            with(func(c *Connection) { c.Mode = Cluster }),
		"a password alone":   with(func(c *Connection) { c.Password = "p" }),
		"user and password":  with(func(c *Connection) { c.Username, c.Password = "u", "p" }),
		"a prefix with path": with(func(c *Connection) { c.Prefix = "shop/web:" }),
	} {
		if err := c.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAConnectionTravelsAsJSON(t *testing.T) {
	c := Connection{Mode: Sentinel, Addresses: []string{"a:1", "b:2"}, Master: "main", CA: []byte("ca"), ServerName: "redis.example", RequireHybrid: true,
		Username: "u", Password: "p", SentinelUsername: "su", SentinelPassword: "sp", Prefix: "qtls:"}
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	var again Connection
	if err := json.Unmarshal(text, &again); err != nil {
		t.Fatal(err)
	}
	if !again.Equal(c) {
		t.Errorf("it reads back as %s", text)
	}
	for name, change := range map[string]func(*Connection){
		"mode":             func(c *Connection) { c.Mode = Cluster },
		"an address":       func(c *Connection) { c.Addresses = []string{"a:1", "b:3"} },
		"fewer addresses":  func(c *Connection) { c.Addresses = c.Addresses[:1] },
		"master":           func(c *Connection) { c.Master = "x" },
		"ca":               func(c *Connection) { c.CA = nil },
		"serverName":       func(c *Connection) { c.ServerName = "" },
		"requireHybrid":    func(c *Connection) { c.RequireHybrid = false },
		"username":         func(c *Connection) { c.Username = "x" },
		"password":         func(c *Connection) { c.Password = "x" },
		"sentinelUsername": func(c *Connection) { c.SentinelUsername = "x" },
		"sentinelPassword": func(c *Connection) { c.SentinelPassword = "x" },
		"prefix":           func(c *Connection) { c.Prefix = "x" },
	} {
		other := c
		if change(&other); other.Equal(c) {
			t.Errorf("a connection with another %s is taken for the same", name)
		}
	}
}

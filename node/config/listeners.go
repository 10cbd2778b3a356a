package config

import (
	"net"
	"sort"
	"strconv"
	"strings"
)

// protocols are Kafka's security protocols; only the first is served.
var protocols = map[string]bool{"PLAINTEXT": true, "SSL": false, "SASL_PLAINTEXT": false, "SASL_SSL": false}

// kafkaListeners reads listeners and advertised.listeners, or the older host.name, port and their advertised forms.
func (p *parser) kafkaListeners(c *Config, hostname string) {
	byName := p.protocolMap()
	controllers := map[string]bool{}
	for _, n := range p.lists["controller.listener.names"] {
		controllers[strings.ToUpper(n)] = true
	}
	bind := p.bound(byName, controllers)
	var adv []Listener
	switch {
	case p.has("advertised.listeners"):
		adv = p.parseListeners("advertised.listeners", p.lists["advertised.listeners"], byName, controllers)
		p.unused("with advertised.listeners", "advertised.host.name", "advertised.port")
	default:
		adv = p.oldAdvertised(bind)
	}
	c.Listeners, c.Advertised = bind, p.match(bind, adv, hostname)
	p.interBroker(c)
}

// bound reads the addresses to bind.
func (p *parser) bound(byName map[string]string, controllers map[string]bool) []Listener {
	if !p.has("listeners") && (p.has("host.name") || p.has("port")) {
		return []Listener{{Name: "PLAINTEXT", Protocol: "PLAINTEXT", Host: p.given["host.name"], Port: int(p.ints["port"])}}
	}
	p.unused("with listeners", "host.name", "port")
	out := p.parseListeners("listeners", p.lists["listeners"], byName, controllers)
	if len(out) == 0 && len(p.faults) == 0 {
		p.fault("listeners", "names no listener for clients")
	}
	return out
}

func (p *parser) unused(when string, keys ...string) {
	for _, k := range keys {
		if p.has(k) {
			p.note(k, "has no effect "+when)
		}
	}
}

func (p *parser) protocolMap() map[string]string {
	m := map[string]string{}
	for name := range protocols {
		m[name] = name
	}
	for _, item := range p.lists["listener.security.protocol.map"] {
		name, proto, ok := strings.Cut(strings.ToUpper(item), ":")
		if _, known := protocols[proto]; !ok || !known {
			p.fault("listener.security.protocol.map", "%q is not NAME:PROTOCOL with one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL", item)
			continue
		}
		m[name] = proto
	}
	return m
}

// parseListeners reads NAME://host:port items; those of controllers are left out.
func (p *parser) parseListeners(key string, items []string, byName map[string]string, controllers map[string]bool) []Listener {
	var out []Listener
	seen := map[string]bool{}
	for _, item := range items {
		name, addr, ok := strings.Cut(item, "://")
		name = strings.ToUpper(name)
		if !ok || !listenerName.MatchString(name) {
			p.fault(key, "%q is not NAME://host:port", item)
			continue
		}
		if controllers[name] {
			continue
		}
		host, port, err := splitHostPort(addr)
		if err != nil {
			p.fault(key, "%v", err)
			continue
		}
		proto, known := byName[name]
		switch {
		case seen[name]:
			p.fault(key, "%s is named twice", name)
		case !known:
			p.fault(key, "%s has no protocol: add %s:PLAINTEXT to listener.security.protocol.map", name, name)
		case !protocols[proto]:
			p.fault(key, "%s asks for %s, which is not built yet: use a PLAINTEXT listener", name, proto)
		default:
			out = append(out, Listener{Name: name, Protocol: proto, Host: host, Port: port})
		}
		seen[name] = true
	}
	return out
}

// oldAdvertised applies advertised.host.name and advertised.port to the first listener.
func (p *parser) oldAdvertised(bind []Listener) []Listener {
	adv := append([]Listener(nil), bind...)
	if len(adv) == 0 {
		return adv
	}
	if h := p.given["advertised.host.name"]; h != "" {
		adv[0].Host = h
	}
	if n, ok := p.ints["advertised.port"]; ok {
		adv[0].Port = int(n)
	}
	return adv
}

// match orders adv like bind and fills hosts that clients could not dial.
func (p *parser) match(bind, adv []Listener, hostname string) []Listener {
	byName := map[string]Listener{}
	for _, a := range adv {
		byName[a.Name] = a
	}
	var out []Listener
	for _, b := range bind {
		a, ok := byName[b.Name]
		delete(byName, b.Name)
		if !ok { // a listener that is bound and not advertised is for those who know it
			continue
		}
		if isWildcard(a.Host) {
			if p.has("advertised.listeners") {
				p.fault("advertised.listeners", "%s needs a host that clients can reach", a)
				continue
			}
			a.Host = hostname
		}
		out = append(out, a)
	}
	for name := range byName {
		p.fault("advertised.listeners", "%s is not in listeners", name)
	}
	if len(out) == 0 && len(p.faults) == 0 {
		p.fault("advertised.listeners", "advertises none of the listeners")
	}
	return out
}

func isWildcard(host string) bool { return host == "" || host == "0.0.0.0" || host == "::" }

func (p *parser) interBroker(c *Config) {
	if v := p.given["security.inter.broker.protocol"]; v != "" && strings.ToUpper(v) != "PLAINTEXT" {
		p.fault("security.inter.broker.protocol", "%s is not built yet: use PLAINTEXT", v)
	}
	name := strings.ToUpper(p.given["inter.broker.listener.name"])
	if name == "" {
		if len(c.Advertised) > 0 {
			c.InterBrokerListener = c.Advertised[0].Name
		}
		return
	}
	c.InterBrokerListener = name
	for _, a := range c.Advertised {
		if a.Name == name {
			return
		}
	}
	p.fault("inter.broker.listener.name", "%s is not among the advertised listeners", name)
}

// otherListeners sets the cluster, ZooKeeper and admin addresses. A port without a host binds the host of the first Kafka
// listener, so that a node made for loopback opens nothing else.
func (p *parser) otherListeners(c *Config) {
	host, public := "", ""
	if len(c.Listeners) > 0 {
		host = c.Listeners[0].Host
	}
	if len(c.Advertised) > 0 {
		public = c.Advertised[0].Host
	}
	at := func(listener, port string) string {
		if v := p.given[listener]; v != "" {
			p.unused("with "+listener, port)
			return v
		}
		if n := p.ints[port]; n >= 0 {
			return net.JoinHostPort(host, strconv.FormatInt(n, 10))
		}
		return ""
	}
	c.ClusterListen = at("cluster.listener", "cluster.port")
	c.ZooKeeperListen = at("zookeeper.listener", "zookeeper.port")
	c.AdminListen = at("admin.listener", "admin.port")
	c.ClusterAdvertise = p.given["cluster.advertised.listener"]
	if c.ClusterAdvertise == "" {
		if h, port, err := splitHostPort(c.ClusterListen); err == nil {
			if isWildcard(h) {
				h = public
			}
			c.ClusterAdvertise = net.JoinHostPort(h, strconv.Itoa(port))
		}
	}
	p.chroots(c)
	p.distinctPorts(c)
}

// chroots takes the chroot of zookeeper.connect, which nothing else is used of, and zookeeper.chroots: clients have the same
// text in their own zookeeper.connect and go on working with it.
func (p *parser) chroots(c *Config) {
	set := map[string]bool{}
	add := func(key, v string) {
		v = strings.TrimRight(v, "/")
		switch {
		case v == "":
		case v[0] != '/' || strings.Contains(v, "//") || strings.Contains(v+"/", "/./") || strings.Contains(v+"/", "/../"):
			p.fault(key, "%q is not a path such as /kafka", v)
		default:
			set[v] = true
		}
	}
	if _, root, ok := strings.Cut(p.given["zookeeper.connect"], "/"); ok {
		add("zookeeper.connect", "/"+root)
	}
	for _, v := range p.lists["zookeeper.chroots"] {
		add("zookeeper.chroots", v)
	}
	for v := range set {
		c.ZooKeeperChroots = append(c.ZooKeeperChroots, v)
	}
	sort.Strings(c.ZooKeeperChroots)
}

// distinctPorts finds two listeners on one address before the system does, and names both keys.
func (p *parser) distinctPorts(c *Config) {
	type use struct{ host, key string }
	used := map[int][]use{}
	add := func(key, addr string) {
		host, port, err := splitHostPort(addr)
		if err != nil || port == 0 {
			return
		}
		for _, u := range used[port] {
			if u.host == host || isWildcard(u.host) || isWildcard(host) {
				p.fault(key, "port %d is also that of %s", port, u.key)
			}
		}
		used[port] = append(used[port], use{host, key})
	}
	for _, l := range c.Listeners {
		add("listeners", l.Address())
	}
	add("cluster.port", c.ClusterListen)
	add("zookeeper.port", c.ZooKeeperListen)
	add("admin.port", c.AdminListen)
}

"""Replicas from DNS: the addresses of a headless service, or SRV records."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from ipaddress import ip_address

from headway.errors import UsageError
from headway.serving.gateway.discovery.options import DnsOptions, spec_of
from headway.serving.gateway.discovery.source import Replicas
from headway.serving.words import counted

try:
    import dns.asyncresolver
    import dns.exception
    import dns.rdatatype
    import dns.resolver
except ModuleNotFoundError:
    raise UsageError("discovery by DNS needs dnspython", hint="pip install 'headway[serving]'") from None

_LOG = logging.getLogger(__name__)


class _NoAnswerError(Exception):
    """The name has no records, or nobody answered; the text says which."""


class DnsSource:
    """Asks again when the answer's time to live has passed, within bounds.

    Of A and AAAA records the A records count where there are any: a dual-stack replica has one of each, and is one
    replica. Of SRV records those of the best priority count (RFC 2782); their weights are not read, for routing is
    ours. Where the name is gone, has no records or nobody answers, the last set stays for `keep_s` and is then empty.

    Raises:
        UsageError: in the constructor: a name server's address is none, or the system names no name servers.
    """

    def __init__(self, options: DnsOptions) -> None:
        self.name = f"dns {options.host}"
        self._options = options
        try:
            self._resolver = dns.asyncresolver.Resolver(configure=not options.nameservers)
            if options.nameservers:
                self._resolver.nameservers = [str(ip_address(each)) for each in options.nameservers]
        except dns.resolver.NoResolverConfiguration as error:
            raise UsageError(f"the system names no name servers: {error}", where=self.name) from None
        except ValueError as error:
            raise UsageError(f"nameservers: {error}", where=self.name) from None
        self._resolver.port = options.nameserver_port
        self._resolver.lifetime = options.timeout_s
        self._resolver.timeout = options.timeout_s / 2  # so that a lost packet leaves time for a second question

    async def watch(self) -> AsyncGenerator[Replicas, None]:
        """As `Source.watch`."""
        options = self._options
        clock = asyncio.get_running_loop().time
        given: Replicas | None = None
        good_s = clock()
        failures, said = 0, ""
        while True:
            try:
                replicas, ttl_s = await self._ask()
            except _NoAnswerError as error:
                # What fails at once must not be asked in a loop, and what is back must be found soon.
                wait_s = min(options.at_least_s * 2 ** min(failures, 16), options.at_most_s)
                failures += 1
                kept = given is None or bool(given)
                left_s = good_s + options.keep_s - clock()
                if kept and left_s <= 0:
                    _LOG.warning("%s: %s, for %g s: it has no replicas", self.name, error, clock() - good_s)
                    said = str(error)
                    given = ()
                    yield given
                elif kept:
                    wait_s = min(wait_s, left_s)
                if str(error) != said:
                    said = str(error)
                    held = f"; {counted(len(given), 'replica')} from before kept {options.keep_s:g} s" if given else ""
                    _LOG.warning("%s: %s%s", self.name, error, held)
            else:
                if said:
                    _LOG.warning("%s: answers again, with %d replicas", self.name, len(replicas))
                failures, said = 0, ""
                good_s = clock()
                wait_s = min(max(ttl_s, options.at_least_s), options.at_most_s)
                if replicas != given:
                    given = replicas
                    yield replicas
            await asyncio.sleep(wait_s)

    async def _ask(self) -> tuple[Replicas, float]:
        """The replicas, sorted by name, and for how long they hold, seconds."""
        if self._options.record == "srv":
            answer = await self._resolve("SRV")
            best = min(record.priority for record in answer)
            places = {
                (record.target.to_text(omit_final_dot=True), record.port)
                for record in answer
                if record.priority == best
            }
            return self._replicas(places), answer.rrset.ttl if answer.rrset is not None else 0.0
        assert self._options.port is not None  # `DnsOptions` has seen to it
        four, six = await asyncio.gather(self._resolve("A"), self._resolve("AAAA"), return_exceptions=True)
        for answer_or_error in (four, six):
            if isinstance(answer_or_error, BaseException):
                if not isinstance(answer_or_error, _NoAnswerError):
                    raise answer_or_error
                continue
            places = {(record.address, self._options.port) for record in answer_or_error}
            ttl_s = answer_or_error.rrset.ttl if answer_or_error.rrset is not None else 0.0
            return self._replicas(places), ttl_s
        raise four if isinstance(four, _NoAnswerError) else _NoAnswerError("no addresses")

    async def _resolve(self, record: str) -> dns.resolver.Answer:
        try:
            async with asyncio.timeout(self._options.timeout_s):  # the resolver's own limit lets its pauses pass
                return await self._resolver.resolve(self._options.host, record, search=True)
        except dns.resolver.NXDOMAIN:
            raise _NoAnswerError("there is no such name") from None
        except dns.resolver.NoAnswer:
            raise _NoAnswerError(f"the name has no {record} records") from None
        except (TimeoutError, dns.exception.Timeout):
            raise _NoAnswerError(f"no answer within {self._options.timeout_s:g} s") from None
        except dns.resolver.NoNameservers:
            raise _NoAnswerError("the name servers fail") from None
        except (dns.exception.DNSException, OSError) as error:
            raise _NoAnswerError(str(error) or type(error).__name__) from None

    def _replicas(self, places: set[tuple[str, int]]) -> Replicas:
        found = []
        for host, port in sorted(places):
            place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            found.append(spec_of(place, f"{self._options.scheme}://{place}", self._options))
        return tuple(found)

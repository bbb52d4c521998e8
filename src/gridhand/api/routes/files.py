"""The routes of files: upload them for a job, list and download what is in its folder."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response

from gridhand.api.auth import owner_of
from gridhand.api.http import BYTES, api_router
from gridhand.api.job_finder import JobFinder
from gridhand.controller.controller import Controller

MOST_DOWNLOADED = 4 << 20  # at once

UploadId = Annotated[str, Path(pattern="^[0-9a-f]{32}$")]
FileName = Annotated[str, Path(max_length=4096)]
Offset = Annotated[int, Query(ge=0, le=2**50)]


def file_routes(controller: Controller) -> APIRouter:
    """Return the routes of files."""
    router = api_router("", "files")
    folders, finder = controller.folders, JobFinder(controller)

    @router.put("/uploads/{id}/{name:path}")
    async def upload(
        id: UploadId, name: FileName, request: Request, offset: Offset = 0, executable: bool = False
    ) -> dict[str, Any]:
        """Write a part of a file, which is the body as it is. A job names the id as `upload`.

        The client chooses the id. Repeating a request changes nothing.
        """
        data = await request.body()
        owner = owner_of(request)
        await folders.write(owner, id, name, offset, data, executable=executable)
        return {"upload": id, "name": name, "end": offset + len(data)}

    @router.get("/jobs/{id}/files")
    async def list_files(id: str, request: Request) -> dict[str, Any]:
        """List the files in the folder of a job that was submitted over the network."""
        job = (await finder.find_own(id, request)).job
        return {"files": [{"name": name, "bytes": size} for name, size in await folders.list(job)]}

    @router.get("/jobs/{id}/files/{name:path}", response_class=Response, responses=BYTES)
    async def download(
        id: str,
        name: FileName,
        request: Request,
        offset: Offset = 0,
        limit: Annotated[int, Query(ge=1, le=MOST_DOWNLOADED)] = MOST_DOWNLOADED,
    ) -> Response:
        """Return a part of a file in the folder of a job; a header has the size of the whole."""
        job = (await finder.find_own(id, request)).job
        part = await folders.read(job, name, offset, limit)
        headers = {
            "X-Gridhand-Size": str(part.size),
            "Content-Disposition": "attachment",  # never shown as a page of ours
        }
        return Response(part.data, media_type="application/octet-stream", headers=headers)

    return router
